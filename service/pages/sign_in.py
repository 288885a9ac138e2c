"""Signing in and out of the web pages: the session cookie and the form token.

The cookie contains a random token, not the API key. A stolen cookie gives access to the pages until the session ends,
but neither to the API nor to the key. `core.keys.sign_ins` stores the sessions.
"""

import hmac
import re
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse, Response

from core.errors import Forbidden, Unauthorized
from core.keys import api_keys, sign_ins
from core.tables.audit import Action
from core.tables.keys import Scope
from service.context import Context, context_of
from service.http.auth import Caller, caller_of, identify_key, note_use
from service.http.request_audit import Auditor, AuditorDep
from service.pages.page_route import MAX_FORM_BYTES, MAX_FORM_FIELDS, PageRoute, SignedOut, read_form
from service.pages.rendering import render

router = APIRouter(route_class=PageRoute, include_in_schema=False)

OWN_PAGES = re.compile(r"/|/privacy[\w/-]*|/models/[a-z0-9_-]{1,63}(/analyses|/drift|/versions/[0-9]{1,9})?")
"""Pages that a visitor can be redirected to after signing in."""
NO_PAGES = "This API key has no access to the pages. Use a key with the scope read, erase, approve or admin."
PAGE_SCOPES = frozenset({Scope.READ, Scope.ERASE, Scope.APPROVE, Scope.ADMIN})


@dataclass(frozen=True)
class Visitor:
    """A visitor who is signed in."""

    caller: Caller
    token: str = field(repr=False)
    name: str = ""
    """Name of the key."""

    @property
    def form_token(self) -> str:
        """Secret in our forms that other sites cannot know (CSRF protection)."""
        return hmac.digest(self.token.encode(), b"form", "sha256").hex()

    @property
    def sees_models(self) -> bool:
        return not self.caller.scopes.isdisjoint({Scope.READ, Scope.ADMIN})

    @property
    def sees_erasures(self) -> bool:
        """Erasure requests concern all models, so a key that is limited to some models cannot see them."""
        permitted = {Scope.ERASE, Scope.APPROVE, Scope.ADMIN}
        return self.caller.models is None and not self.caller.scopes.isdisjoint(permitted)

    @property
    def handles_requests(self) -> bool:
        """Whether the visitor may file requests and write letters, not only decide requests."""
        return not self.caller.scopes.isdisjoint({Scope.ERASE, Scope.ADMIN})

    @property
    def is_admin(self) -> bool:
        return Scope.ADMIN in self.caller.scopes


def cookie_of(request: Request) -> str:
    """The name of the cookie. It contains the port, because browsers share cookies between the ports of a host."""
    return f"amend_{request.url.port}" if request.url.port else "amend"


def find_visitor(context: Context, token: str) -> Visitor | None:
    """The visitor with a session token; None if the session has ended."""
    with context.database.read() as session:
        key = sign_ins.find_key(session, token)
        if key is None:
            return None
        stale = api_keys.is_stale(key)
        # without the credential, because forms have no Idempotency-Key
        visitor = Visitor(caller_of(key, ""), token, key.name)
    if stale:
        note_use(context, visitor.caller.key_id)
    return visitor


async def look_for_visitor(request: Request) -> Visitor | None:
    token = request.cookies.get(cookie_of(request), "")
    visitor = await run_in_threadpool(find_visitor, context_of(request), token) if token else None
    if visitor is not None:
        context_of(request).rate_limit.admit(visitor.caller.key_id, visitor.caller.requests_per_second)
        request.state.caller = visitor.caller  # for the request log
    request.state.visitor = visitor
    return visitor


async def require_visitor(request: Request) -> Visitor:
    visitor = await look_for_visitor(request)
    if visitor is None:
        raise SignedOut
    return visitor


VisitorDep = Annotated[Visitor, Depends(require_visitor)]


async def read_visitors_form(request: Request, visitor: VisitorDep) -> dict[str, str]:
    """The fields of a small form that this visitor sent from one of our pages."""
    return await check_form(request, visitor)


async def check_form(
    request: Request, visitor: Visitor, max_bytes: int = MAX_FORM_BYTES, max_fields: int = MAX_FORM_FIELDS
) -> dict[str, str]:
    """The fields of a form that this visitor sent from one of our pages. Raises Forbidden otherwise."""
    form = await read_form(request, max_bytes, max_fields)
    if not hmac.compare_digest(form.get("token", "").encode(), visitor.form_token.encode()):
        raise Forbidden("form_stale", "The form belongs to another session. Go back, reload the page and try again.")
    return form


FormDep = Annotated[dict[str, str], Depends(read_visitors_form)]


def sign_in_page(context: Context, back: str, problem: str = "", status: int = 200) -> Response:
    single = context.identity_provider is not None
    return HTMLResponse(render("sign_in.html", None, back=safe_page(back), problem=problem, single=single), status)


def safe_page(back: str) -> str:
    """A page of ours, also if a link to the sign-in page names another site."""
    return back if OWN_PAGES.fullmatch(back) else "/"


@router.get("/sign-in")
async def show_sign_in(request: Request, back: Annotated[str, Query(alias="next", max_length=200)] = "/") -> Response:
    return sign_in_page(context_of(request), back)


@router.post("/sign-in")
async def sign_in(request: Request, auditor: AuditorDep) -> Response:
    form = await read_form(request)
    back = form.get("next", "/")
    try:
        old = request.cookies.get(cookie_of(request), "")
        caller, token = await run_in_threadpool(open_session, auditor, form.get("key", "").strip(), old)
        request.state.caller = caller
    except Unauthorized as error:
        return sign_in_page(context_of(request), back, error.detail, 401)
    except Forbidden as error:
        return sign_in_page(context_of(request), back, error.detail, 403)
    return redirect_signed_in(request, token, back)


def redirect_signed_in(request: Request, token: str, back: str) -> Response:
    """Give the browser the cookie of its session, and the page that it wanted."""
    response = RedirectResponse(safe_page(back), 303)
    response.set_cookie(
        cookie_of(request),
        token,
        max_age=int(sign_ins.LIFETIME.total_seconds()),
        httponly=True,
        samesite="lax",
        secure=uses_https(request),
    )
    return response


def uses_https(request: Request) -> bool:
    """Whether the browser uses https. Behind a proxy that terminates TLS, the public URL or the Origin header shows
    it.
    """
    hints = (str(request.url), context_of(request).settings.public_url, request.headers.get("origin", ""))
    return any(hint.startswith("https:") for hint in hints)


def open_session(auditor: Auditor, key: str, old: str) -> tuple[Caller, str]:
    """Open a session for a key and end the previous session of the browser; also returns the token for the cookie.

    A token of the identity provider opens none: the session would outlive the token.
    """
    context = auditor.context
    caller, stale = identify_key(context, key)
    if caller.scopes.isdisjoint(PAGE_SCOPES):
        raise Forbidden("scope_missing", NO_PAGES)
    with context.database.write() as session:
        if stale:
            api_keys.record_use(session, caller.key_id)
        sign_ins.sign_out(session, old)
        auditor.record(session, caller, Action.SIGNED_IN)
        return caller, sign_ins.sign_in(session, caller.key_id)


@router.post("/sign-out")
async def sign_out(request: Request, visitor: VisitorDep, _form: FormDep, auditor: AuditorDep) -> Response:
    await run_in_threadpool(end_session, auditor, visitor)
    response = RedirectResponse("/sign-in", 303)
    response.delete_cookie(cookie_of(request), httponly=True, samesite="lax")
    return response


def end_session(auditor: Auditor, visitor: Visitor) -> None:
    with auditor.context.database.write() as session:
        sign_ins.sign_out(session, visitor.token)
        auditor.record(session, visitor.caller, Action.SIGNED_OUT)
