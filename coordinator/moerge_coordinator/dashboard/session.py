"""Sessions: the token's cookie, the origin of forms, and the headers of every answer."""

from collections.abc import Mapping
from urllib.parse import parse_qsl

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from moerge.bearer import bearer_token
from moerge.errors import MoergeError

COOKIE = "moerge_session"
HOURS = 12
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class ForeignFormError(Exception):
    """The form is not from a page of this coordinator."""


class Guarded:
    """Adds the headers that isolate pages; answers without a Cache-Control are not stored."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self._app(scope, receive, guarded)


def token_of(request: Request) -> str | None:
    """The visitor's token, or None before signing in."""
    try:
        return bearer_token(request.cookies.get(COOKIE, ""), COOKIE)
    except MoergeError:  # a cookie of another program
        return None


def sign_in(request: Request, response: Response, token: str) -> None:
    """Stores the token in a cookie that scripts can't read and other sites' pages can't send."""
    secure = request.url.scheme == "https"
    response.set_cookie(
        COOKIE, token, max_age=HOURS * 3600, path="/dashboard", secure=secure, httponly=True, samesite="strict"
    )


def sign_out(response: Response) -> None:
    response.delete_cookie(COOKIE, path="/dashboard")


async def read_form(request: Request) -> Mapping[str, str]:
    """The fields of a form; raises `ForeignFormError` unless it is from a page of this coordinator.

    Against cross-site request forgery: browsers say where a form comes from, and pages can't change these headers.
    """
    headers = request.headers
    host, site = headers.get("origin", "").partition("://")[2], headers.get("sec-fetch-site")
    if (not host or host != headers.get("host")) if site is None else site != "same-origin":
        raise ForeignFormError
    return dict(parse_qsl((await request.body()).decode("utf-8", "replace"), keep_blank_values=True))
