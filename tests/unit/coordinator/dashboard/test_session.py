"""A form counts only from a page of this coordinator, as the browser says."""

import asyncio

import pytest
from starlette.requests import Request
from starlette.types import Message

from moerge_coordinator.dashboard.session import ForeignFormError, read_form

HOST, OWN = "moerge.example:8443", "https://moerge.example:8443"


def sent(**headers: str) -> dict[str, str]:
    """The fields of a form that a browser sends with these headers."""

    async def receive() -> Message:
        return {"type": "http.request", "body": b"alias=a"}

    pairs = {"host": HOST, **headers}.items()
    given = [(name.replace("_", "-").encode(), value.encode()) for name, value in pairs]
    return dict(
        asyncio.run(read_form(Request({"type": "http", "method": "POST", "path": "/", "headers": given}, receive)))
    )


@pytest.mark.parametrize(
    "headers", [{"origin": OWN}, {"sec_fetch_site": "same-origin"}, {"sec_fetch_site": "same-origin", "host": "inner"}]
)
def test_a_form_of_an_own_page_gives_its_fields(headers: dict[str, str]) -> None:
    assert sent(**headers) == {"alias": "a"}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "null"},
        {"origin": ""},
        {"origin": "", "host": ""},
        {"origin": "https://moerge.example"},
        {"origin": f"https://evil.{HOST}"},
        {"origin": "https://evil.example", "sec_fetch_site": "same-site"},
        {"origin": OWN, "sec_fetch_site": "same-site"},
        {"origin": OWN, "sec_fetch_site": "cross-site"},
        {"origin": OWN, "sec_fetch_site": "none"},
    ],
)
def test_a_form_of_another_page_is_foreign(headers: dict[str, str]) -> None:
    with pytest.raises(ForeignFormError):
        sent(**headers)
