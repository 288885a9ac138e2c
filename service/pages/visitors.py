"""Who looks at the pages: signing in with a key, and out; the cookie, and the token of forms.

The cookie holds a random token and not the key: who steals it can look and press buttons until it ends, and neither use
the API nor read the key. `core.keys.sign_ins` has the other half.
"""

from __future__ import annotations

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

OWN_PAGES = re.compile(r"/|/privacy[\w/-]*|/models/[a-z0-9_-]{1,63}")
"""Pages that a visitor can be redirected to after signing in."""
NO_PAGES = "This key can see none of the pages: that takes the scope read, erase or admin."


@dataclass(frozen=True)
class Visitor:
    """Somebody who is signed in."""

    caller: Caller
    token: str = field(repr=False)

    @property
    def form_token(self) -> str:
        """What our own forms carry, and another site's cannot know."""
        return hmac.digest(self.token.encode(), b"form", "sha256").hex()

    @property
    def sees_models(self) -> bool:
        return not self.caller.scopes.isdisjoint({Scope.READ, Scope.ADMIN})

    @property
    def sees_people(self) -> bool:
        """Requests to be forgotten concern all models."""
        return self.caller.models is None and not self.caller.scopes.isdisjoint({Scope.ERASE, Scope.ADMIN})

    @property
    def acts(self) -> bool:
        return Scope.ADMIN in self.caller.scopes


def cookie_of(request: Request) -> str:
    """The cookie's name. Browsers keep those of all ports of a host together, and there may be two of us."""
    return f"amend_{request.url.port}" if request.url.port else "amend"


def find_visitor(context: Context, token: str) -> Visitor | None:
    """Who is signed in with a token."""
    with context.database.read() as session:
        key = sign_ins.find_key(session, token)
        if key is None:
            return None
        stale = keyring.is_stale(key)
        models = None if key.models is None else frozenset(key.models)
        # without the key's text: nothing that is done by forms is kept for repetitions under it
        visitor = Visitor(Caller(key.id, "", frozenset(key.scopes), models), token)
    if stale:
        note_use(context, visitor.caller.key_id)
    return visitor


async def look_for_visitor(request: Request) -> Visitor | None:
    token = request.cookies.get(cookie_of(request), "")
    found = await run_in_threadpool(find_visitor, context_of(request), token) if token else None
    if found is not None:
        context_of(request).rate_limit.admit(found.caller.key_id)
    request.state.visitor = found
    return found


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
        raise Forbidden("form_stale", "This form is from another session: go back, reload the page and try again.")
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
    answer = RedirectResponse(back if OWN_PAGES.fullmatch(back) else "/", 303)
    answer.set_cookie(
        cookie_of(request),
        token,
        max_age=int(sign_ins.LIFETIME.total_seconds()),
        httponly=True,
        samesite="lax",
        # TLS may end at a proxy before us: then only the browser knows
        secure=request.url.scheme == "https" or request.headers.get("origin", "").startswith("https:"),
    )
    return answer


def open_session(context: Context, key: str, old: str) -> str:
    """Sign in the holder of a key, in place of whoever was in this browser; the token for the cookie."""
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
    answer = RedirectResponse("/sign-in", 303)
    answer.delete_cookie(cookie_of(request), httponly=True, samesite="lax")
    return answer


def end_session(context: Context, token: str) -> None:
    with context.database.write() as session:
        sign_ins.sign_out(session, token)
