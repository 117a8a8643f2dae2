"""Who is signed in: the cookie that holds a token, what guards forms, and what every answer tells the browser."""

import hmac
import secrets
from collections.abc import Mapping
from urllib.parse import parse_qsl

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE, VISITOR = "moerge_session", "moerge_visitor"
HOURS = 12
_FIELD = "csrf"
_MOST_BYTES = 2**20
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class ForeignFormError(Exception):
    """A form that this session's page didn't send, or that is too large."""


class Guarded:
    """Adds the headers that keep pages to themselves; what isn't said to be kept is not."""

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
    """The token of whoever is signed in."""
    return request.cookies.get(COOKIE)


def sign_in(request: Request, response: Response, token: str) -> None:
    """Keeps the token in a cookie that scripts can't read and other sites' pages can't send."""
    _set(request, response, COOKIE, token)


def sign_out(response: Response) -> None:
    response.delete_cookie(COOKIE, path="/dashboard")


def visitor_guard(request: Request, response: Response) -> str:
    """What the sign-in form must bring along, tied to this browser by a cookie of its own."""
    visitor = secrets.token_hex(16)
    _set(request, response, VISITOR, visitor)
    return visitor


def _set(request: Request, response: Response, name: str, value: str) -> None:
    secure = request.url.scheme == "https"
    response.set_cookie(
        name, value, max_age=HOURS * 3600, path="/dashboard", secure=secure, httponly=True, samesite="strict"
    )


def guard(token: str) -> str:
    """What every form of a session must bring along (against cross-site request forgery)."""
    return hmac.digest(token.encode(), b"csrf", "sha256").hex()


async def form(request: Request) -> Mapping[str, str]:
    """The fields of a form that this session's own page sent.

    Raises:
        ForeignFormError: it didn't, or sent more than a MiB.
    """
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > _MOST_BYTES:
            raise ForeignFormError
    fields = dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
    token = token_of(request)
    expected = request.cookies.get(VISITOR) if token is None else guard(token)
    if expected is None or not hmac.compare_digest(fields.pop(_FIELD, "").encode(), expected.encode()):
        raise ForeignFormError
    return fields
