"""The route class of web pages: security headers, errors as pages, and forms from the same origin only."""

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
    # with "no-referrer", browsers would not send the origin of forms
    "Referrer-Policy": "same-origin",
    # after signing out, the browser must not show pages from its cache
    "Cache-Control": "no-store",
}
MAX_FORM_BYTES = 8192
MAX_FORM_FIELDS = 10


class SignedOut(Exception):
    """The page requires signing in."""


class PageRoute(APIRoute):
    """A route that responds with pages, also to errors."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_page(request: Request) -> Response:
            try:
                response = await handle(request)
            except SignedOut:
                back = request.url.path if request.method == "GET" else "/"
                response = RedirectResponse(f"/sign-in?next={quote(back)}", 303)
            except RequestValidationError:
                response = error_page(request, 404, "This page does not exist.")
            except AmendError as error:
                response = error_page(request, STATUS[type(error)], error.detail)
            for name, value in HEADERS.items():
                response.headers.setdefault(name, value)
            # like MonotonicReads: later predictions use no older champion than the one that the page shows
            context_of(request).version_keys.outdate()
            return response

        return handle_page


def error_page(request: Request, status: int, detail: str) -> Response:
    visitor = getattr(request.state, "visitor", None)
    return HTMLResponse(render("error.html", visitor, status=status, detail=readable(detail)), status)


async def read_form(
    request: Request, max_bytes: int = MAX_FORM_BYTES, max_fields: int = MAX_FORM_FIELDS
) -> dict[str, str]:
    """The fields of a form. Raises Forbidden if another site sent it."""
    require_same_origin(request)
    length = request.headers.get("content-length", "")
    body = await Request(request.scope, limit_body(request.receive, length, max_bytes)).body()
    try:
        return dict(parse_qsl(body.decode(), max_num_fields=max_fields))
    except ValueError:
        raise Malformed("body_malformed", "The form is invalid. Reload the page and try again.") from None


def require_same_origin(request: Request) -> None:
    """Raise Forbidden if the browser reports another site as the origin. Clients other than browsers report none."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        ours = site in ("same-origin", "none")
    else:
        ours = origin is None or origin.partition("://")[2] == request.headers.get("host")
    if not ours:
        raise Forbidden("form_foreign", "The request came from another site and was rejected.")
