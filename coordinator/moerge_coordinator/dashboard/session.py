"""Sessions: the token's cookie, the guards of forms, and the headers of every answer."""

import hmac
import secrets
from collections.abc import Mapping
from urllib.parse import parse_qsl

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from moerge.bearer import bearer_token
from moerge.errors import MoergeError

COOKIE, VISITOR = "moerge_session", "moerge_visitor"
HOURS = 12
_FIELD = "csrf"
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class ForeignFormError(Exception):
    """The form is not from a page of this session."""


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
    _set(request, response, COOKIE, token)


def sign_out(response: Response) -> None:
    response.delete_cookie(COOKIE, path="/dashboard")


def new_visitor() -> str:
    """The guard of a sign-in form."""
    return secrets.token_hex(16)


def visitor_of(request: Request) -> str:
    """The guard of the forms of a person whom a proxy signed in: this browser's, or a new one."""
    return request.cookies.get(VISITOR) or new_visitor()


def keep_visitor(request: Request, response: Response, visitor: str) -> None:
    """Ties forms without a token to this browser, by a cookie."""
    _set(request, response, VISITOR, visitor)


def _set(request: Request, response: Response, name: str, value: str) -> None:
    secure = request.url.scheme == "https"
    response.set_cookie(
        name, value, max_age=HOURS * 3600, path="/dashboard", secure=secure, httponly=True, samesite="strict"
    )


def guard(token: str) -> str:
    """The hidden field of every form of a session, against cross-site request forgery."""
    return hmac.digest(token.encode(), b"csrf", "sha256").hex()


async def read_form(request: Request) -> Mapping[str, str]:
    """The fields of a form; raises `ForeignFormError` unless it is from a page of this session."""
    fields = dict(parse_qsl((await request.body()).decode("utf-8", "replace"), keep_blank_values=True))
    token = token_of(request)
    expected = request.cookies.get(VISITOR) if token is None else guard(token)
    if expected is None or not hmac.compare_digest(fields.pop(_FIELD, "").encode(), expected.encode()):
        raise ForeignFormError
    return fields
