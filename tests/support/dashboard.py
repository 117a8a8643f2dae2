"""The dashboard over plain HTTP, as in a browser without JavaScript."""

import html
import re
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from support.processes import Coordinator


def visitor(server: Coordinator) -> httpx.Client:
    """A signed-out browser."""
    return httpx.Client(base_url=f"{server.url}/dashboard", headers={"Origin": server.url}, timeout=60)


@contextmanager
def signed_in(server: Coordinator, token: str | None = None) -> Iterator[httpx.Client]:
    """A signed-in browser, by default the operator's."""
    with visitor(server) as browser:
        answer = browser.post("/sign-in", data={"token": token or server.operator_token})
        assert answer.status_code == 303, answer.text
        yield browser


def act(browser: httpx.Client, path: str, **fields: str) -> httpx.Response:
    """Fills in the form at `path` and sends it."""
    page = browser.get(path)
    assert page.status_code == 200, page.text
    hidden = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', page.text))
    return browser.post(path, data=hidden | fields)


def words(page: httpx.Response) -> str:
    """The text of a page, as a reader sees it."""
    apart = re.sub(r"</(t[hd]|d[td]|h\d|p)>", " ", page.text)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", "", apart)).split())
