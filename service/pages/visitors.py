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
from core.keys import keyring, sign_ins
from core.tables.keys import Scope
from service.context import Context, ContextDep, context_of
from service.http.auth import Caller, identify, note_use
from service.pages.rendering import render
from service.pages.route import PageRoute, SignedOut, read_form

router = APIRouter(route_class=PageRoute, include_in_schema=False)

OWN_PAGES = re.compile(r"/|/privacy[\w/-]*|/models/[a-z0-9_-]{1,63}(/drift|/versions/[0-9]{1,9})?")
"""Pages that a visitor can be redirected to after signing in."""
NO_PAGES = "This API key has no access to the pages. Use a key with the scope read, erase or admin."


@dataclass(frozen=True)
class Visitor:
    """A visitor who is signed in."""

    caller: Caller
    token: str = field(repr=False)

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
        return self.caller.models is None and not self.caller.scopes.isdisjoint({Scope.ERASE, Scope.ADMIN})

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
        stale = keyring.is_stale(key)
        models = None if key.models is None else frozenset(key.models)
        # without the credential, because forms have no Idempotency-Key
        visitor = Visitor(Caller(key.id, "", frozenset(key.scopes), models), token)
    if stale:
        note_use(context, visitor.caller.key_id)
    return visitor


async def look_for_visitor(request: Request) -> Visitor | None:
    token = request.cookies.get(cookie_of(request), "")
    visitor = await run_in_threadpool(find_visitor, context_of(request), token) if token else None
    if visitor is not None:
        context_of(request).rate_limit.admit(visitor.caller.key_id)
    request.state.visitor = visitor
    return visitor


async def require_visitor(request: Request) -> Visitor:
    visitor = await look_for_visitor(request)
    if visitor is None:
        raise SignedOut
    return visitor


VisitorDep = Annotated[Visitor, Depends(require_visitor)]


async def read_visitors_form(request: Request, visitor: VisitorDep) -> dict[str, str]:
    """The fields of a form that this visitor sent from one of our pages."""
    form = await read_form(request)
    if not hmac.compare_digest(form.get("token", "").encode(), visitor.form_token.encode()):
        raise Forbidden("form_stale", "The form belongs to another session. Go back, reload the page and try again.")
    return form


FormDep = Annotated[dict[str, str], Depends(read_visitors_form)]


def sign_in_page(back: str, problem: str = "", status: int = 200) -> Response:
    safe = back if OWN_PAGES.fullmatch(back) else "/"
    return HTMLResponse(render("sign_in.html", None, back=safe, problem=problem), status)


@router.get("/sign-in")
async def show_sign_in(back: Annotated[str, Query(alias="next", max_length=200)] = "/") -> Response:
    return sign_in_page(back)


@router.post("/sign-in")
async def sign_in(request: Request, context: ContextDep) -> Response:
    form = await read_form(request)
    back = form.get("next", "/")
    try:
        old = request.cookies.get(cookie_of(request), "")
        token = await run_in_threadpool(open_session, context, form.get("key", "").strip(), old)
    except Unauthorized as error:
        return sign_in_page(back, error.detail, 401)
    except Forbidden as error:
        return sign_in_page(back, error.detail, 403)
    response = RedirectResponse(back if OWN_PAGES.fullmatch(back) else "/", 303)
    response.set_cookie(
        cookie_of(request),
        token,
        max_age=int(sign_ins.LIFETIME.total_seconds()),
        httponly=True,
        samesite="lax",
        # behind a proxy that terminates TLS, only the Origin header shows that the browser uses https
        secure=request.url.scheme == "https" or request.headers.get("origin", "").startswith("https:"),
    )
    return response


def open_session(context: Context, key: str, old: str) -> str:
    """Open a session for a key and end the previous session of the browser. Returns the token for the cookie."""
    caller, stale = identify(context, key)
    if caller.scopes.isdisjoint({Scope.READ, Scope.ERASE, Scope.ADMIN}):
        raise Forbidden("scope_missing", NO_PAGES)
    with context.database.write() as session:
        if stale:
            keyring.record_use(session, caller.key_id)
        sign_ins.sign_out(session, old)
        return sign_ins.sign_in(session, caller.key_id)


@router.post("/sign-out")
async def sign_out(request: Request, visitor: VisitorDep, _form: FormDep, context: ContextDep) -> Response:
    await run_in_threadpool(end_session, context, visitor.token)
    response = RedirectResponse("/sign-in", 303)
    response.delete_cookie(cookie_of(request), httponly=True, samesite="lax")
    return response


def end_session(context: Context, token: str) -> None:
    with context.database.write() as session:
        sign_ins.sign_out(session, token)
