"""Signing in to the web pages at an identity provider."""

import hmac
import json
import re
import time
from dataclasses import asdict
from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Query, Request
from starlette.responses import RedirectResponse, Response

from core.errors import AmendError, Forbidden, NotFound, Unauthorized, Unavailable
from core.keys import people, sign_ins
from core.tables.audit import Action
from service.context import Context, context_of
from service.http.auth import Caller, caller_of_person
from service.http.identity_provider import SignInAttempt
from service.http.problems import STATUS
from service.http.request_audit import Auditor, AuditorDep
from service.pages.page_route import PageRoute
from service.pages.sign_in import cookie_of, redirect_signed_in, sign_in_page, uses_https

router = APIRouter(prefix="/sign-in/oidc", route_class=PageRoute, include_in_schema=False)

ATTEMPT_SECONDS = 600
"""Time that a person has for signing in at the provider."""
Next = Annotated[str, Query(alias="next", max_length=200)]


@router.get("")
async def begin(request: Request, back: Next = "/") -> Response:
    """Send the browser to the provider's sign-in page."""
    context = context_of(request)
    if context.identity_provider is None:
        raise NotFound("path_not_found", "This page does not exist.")
    attempt = SignInAttempt.begin()
    try:
        provider = context.identity_provider
        uri = redirect_uri(request, context)
        url = await to_thread.run_sync(provider.authorization_url, attempt, uri, limiter=provider.threads)
    except Unavailable as error:
        return sign_in_page(context, back, error.detail, 503)
    response = RedirectResponse(url, 303)
    response.set_cookie(
        attempt_cookie(request),
        seal(context, attempt, back),
        max_age=ATTEMPT_SECONDS,
        path=router.prefix,
        httponly=True,
        samesite="lax",
        secure=uses_https(request),
    )
    return response


@router.get("/callback")
async def finish(
    request: Request,
    auditor: AuditorDep,
    code: Annotated[str, Query(max_length=4000)] = "",
    state: Annotated[str, Query(max_length=200)] = "",
    error: Annotated[str, Query(max_length=100)] = "",
    iss: Annotated[str | None, Query(max_length=2000)] = None,
) -> Response:
    """Sign in the person whom the provider has sent back."""
    context = context_of(request)
    back = "/"
    try:
        attempt, back = unseal(context, request.cookies.get(attempt_cookie(request), ""))
        foreign = iss is not None and iss.rstrip("/") != context.settings.oidc_issuer  # RFC 9207
        if foreign or not hmac.compare_digest(state.encode(), attempt.state.encode()):
            raise stale()
        if error or not code:
            reason = f" ({error})" if re.fullmatch(r"[a-z_]+", error) else ""
            raise Unauthorized("sign_in_refused", f"The identity provider refused the sign-in{reason}.")
        uri, old = redirect_uri(request, context), request.cookies.get(cookie_of(request), "")
        limiter = None if context.identity_provider is None else context.identity_provider.threads
        caller, token = await to_thread.run_sync(open_session, auditor, code, attempt, uri, old, limiter=limiter)
        request.state.caller = caller
    except (Unauthorized, Forbidden, Unavailable) as problem:
        response = sign_in_page(context, back, problem.detail, STATUS[type(problem)])
    else:
        response = redirect_signed_in(request, token, back)
    response.delete_cookie(attempt_cookie(request), path=router.prefix, httponly=True, samesite="lax")
    return response


def open_session(auditor: Auditor, code: str, attempt: SignInAttempt, uri: str, old: str) -> tuple[Caller, str]:
    """Open a session for the person and end the previous session of the browser; returns the token for the cookie.

    A person who has lost all roles is signed out everywhere.
    """
    context = auditor.context
    assert context.identity_provider is not None
    identity = context.identity_provider.redeem(code, attempt, uri)
    with context.database.write() as session:
        if not identity.scopes and people.find(session, identity) is not None:
            caller = caller_of_person(people.save(session, identity), identity)
            sign_ins.end_sessions(session, identity.key_id)
            auditor.record(session, caller, Action.SIGNED_OUT)
    people.require_role(identity)
    with context.database.write() as session:
        caller = caller_of_person(people.save(session, identity), identity)
        sign_ins.sign_out(session, old)
        auditor.record(session, caller, Action.SIGNED_IN)
        return caller, sign_ins.sign_in(session, caller.key_id)


def redirect_uri(request: Request, context: Context) -> str:
    base = context.settings.public_url or f"{'https' if uses_https(request) else 'http'}://{request.url.netloc}"
    return f"{base}{router.prefix}/callback"


def attempt_cookie(request: Request) -> str:
    return f"{cookie_of(request)}_oidc"


def seal(context: Context, attempt: SignInAttempt, back: str) -> str:
    """The content of the cookie that ties an attempt to sign in to the browser that began it."""
    content = {**asdict(attempt), "back": back, "until": time.time() + ATTEMPT_SECONDS}
    text = json.dumps(content).encode().hex()  # base64's equals signs would be quoted
    return f"{text}.{authenticate(context, text)}"


def unseal(context: Context, cookie: str) -> tuple[SignInAttempt, str]:
    """The attempt that a cookie belongs to, and the page to return to. Raises Unauthorized if it is over."""
    text, _, code = cookie.partition(".")
    if not hmac.compare_digest(code.encode(), authenticate(context, text).encode()):
        raise stale()
    content = json.loads(bytes.fromhex(text))
    if content["until"] < time.time():
        raise stale()
    return SignInAttempt(content["state"], content["nonce"], content["verifier"]), str(content["back"])


def authenticate(context: Context, text: str) -> str:
    return hmac.digest(context.settings.secret, f"sign-in attempt\n{text}".encode(), "sha256").hex()


def stale() -> AmendError:
    return Unauthorized("sign_in_stale", "This sign-in took too long, or began in another browser. Sign in again.")
