"""A form counts only with the guard of the session that sends it."""

import asyncio
from urllib.parse import urlencode

import pytest
from starlette.requests import Request
from starlette.types import Message

from moerge_coordinator.dashboard.session import COOKIE, VISITOR, ForeignFormError, guard, read_form


def sent(fields: dict[str, str], **cookies: str) -> dict[str, str]:
    """The fields of a form that a browser with these cookies sends."""
    cookie = "; ".join(f"{name}={value}" for name, value in cookies.items())

    async def receive() -> Message:
        return {"type": "http.request", "body": urlencode(fields).encode()}

    scope = {"type": "http", "method": "POST", "path": "/", "headers": [(b"cookie", cookie.encode())]}
    return dict(asyncio.run(read_form(Request(scope, receive))))


def test_a_form_with_its_session_s_guard_gives_its_fields() -> None:
    assert sent({"csrf": guard("token"), "alias": "a"}, **{COOKIE: "token"}) == {"alias": "a"}
    assert sent({"csrf": "visitor", "token": "t"}, **{VISITOR: "visitor"}) == {"token": "t"}


@pytest.mark.parametrize("given", [{}, {"csrf": ""}, {"csrf": guard("another")}, {"csrf": "token"}])
def test_a_form_with_another_guard_is_foreign(given: dict[str, str]) -> None:
    for cookies in ({COOKIE: "token"}, {VISITOR: "visitor"}, {COOKIE: "token", VISITOR: "token"}, {}):
        with pytest.raises(ForeignFormError):
            sent(given, **cookies)
