"""What pages share: headers that let nothing foreign run in them, errors as pages, forms that only our own can send."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import parse_qsl, quote

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.responses import HTMLResponse, RedirectResponse, Response

from core.errors import AmendError, Forbidden, Malformed
from service.context import context_of
from service.http.middleware import limit_body
from service.http.problems import STATUS, readable
from service.pages.rendering import render

FETCH_POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'"
POLICY = f"{FETCH_POLICY}; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # not "no-referrer": with that, browsers do not say where a form comes from
    "Referrer-Policy": "same-origin",
    # what somebody saw must not be shown again by their browser after they have signed out
    "Cache-Control": "no-store",
}
MAX_FORM_BYTES = 8192


class SignedOut(Exception):
    """Nobody is signed in who could see the page."""


class PageRoute(APIRoute):
    """A route that answers with pages, whatever happens."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_page(request: Request) -> Response:
            try:
                answer = await handle(request)
            except SignedOut:
                back = request.url.path if request.method == "GET" else "/"
                answer = RedirectResponse(f"/sign-in?next={quote(back)}", 303)
            except RequestValidationError:
                answer = error_page(request, 404, "There is no such page.")
            except AmendError as error:
                answer = error_page(request, STATUS[type(error)], error.detail)
            for name, value in HEADERS.items():
                answer.headers.setdefault(name, value)
            # as after every answer of the API: who saw a new champion is answered by it
            context_of(request).champions.outdate()
            return answer

        return handle_page


def error_page(request: Request, status: int, detail: str) -> Response:
    visitor = getattr(request.state, "visitor", None)
    return HTMLResponse(render("error.html", visitor, status=status, detail=readable(detail)), status)


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form that one of our own pages sent; Forbidden if another site's did."""
    require_same_origin(request)
    length = request.headers.get("content-length", "")
    body = await Request(request.scope, limit_body(request.receive, length, MAX_FORM_BYTES)).body()
    try:
        return dict(parse_qsl(body.decode(), max_num_fields=10))
    except ValueError:
        raise Malformed("body_malformed", "This is not a form of ours.") from None


def require_same_origin(request: Request) -> None:
    """Forbidden if a browser says that another site's page sent the request. What is no browser says nothing."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        ours = site in ("same-origin", "none")
    else:
        ours = origin is None or origin.partition("://")[2] == request.headers.get("host")
    if not ours:
        raise Forbidden("form_foreign", "Another site's page sent this; it was not done.")
