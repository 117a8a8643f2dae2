"""Debian's Chromium, driven by playwright."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, Page, sync_playwright

from support.processes import Coordinator

_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
_FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
SIZES = {"wide": 1280, "narrow": 390}


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser without a window.

    Raises:
        RuntimeError: none is installed.
    """
    path = next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None:
        raise RuntimeError("no Chromium is installed; on Debian: apt-get install chromium-headless-shell")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=_FLAGS)
        try:
            yield chromium
        finally:
            chromium.close()


@contextmanager
def visit(
    chromium: Browser, server: Coordinator, token: str, *, width: int = 1280, dark: bool = False, scripts: bool = True
) -> Iterator[Page]:
    """A page of a signed-in user."""
    context = chromium.new_context(
        viewport={"width": width, "height": 900},
        color_scheme="dark" if dark else "light",
        java_script_enabled=scripts,
    )
    try:
        page = context.new_page()
        page.goto(f"{server.url}/")
        page.fill("#token", token)
        page.click("button")
        yield page
    finally:
        context.close()
