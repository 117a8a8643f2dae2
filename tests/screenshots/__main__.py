"""`python -m screenshots DEMO FOLDER`: pictures of the dashboard after `moerge demo --home DEMO`."""

import argparse
from pathlib import Path

from moerge.progress import LogProgress
from support.browser import browser, visit
from support.processes import Coordinator

PICTURES = {
    "versions": ("versions", 1280, False),
    "version": ("versions/2", 1280, False),
    "version-narrow": ("versions/2", 390, True),
}
"""Name -> page, width in pixels, dark."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m screenshots", description=__doc__)
    parser.add_argument("demo", type=Path, help="the demo's home")
    parser.add_argument("folder", type=Path, help="where the pictures go")
    chosen = parser.parse_args()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    server = Coordinator(chosen.demo / "coordinator", (chosen.demo / "operator-token").read_text())
    server.start()
    try:
        with browser() as chromium, LogProgress().track("pictures", len(PICTURES), "pictures") as tracker:
            for name, (place, width, dark) in PICTURES.items():
                with visit(chromium, server, server.operator_token, width=width, dark=dark) as page:
                    page.goto(f"{server.url}/dashboard/{place}")
                    page.screenshot(path=chosen.folder / f"dashboard-{name}.png", full_page=True)
                tracker.advance(1)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
