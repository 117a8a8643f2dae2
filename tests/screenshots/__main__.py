"""`python -m screenshots DEMO FOLDER`: pictures of the dashboard after `moerge demo --home DEMO`, and of a first hour.

Those of a first hour are of random experts.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import Browser

from moerge.progress import LogProgress
from moerge_proto.owners import NewToken, Role
from moerge_proto.progress import Progress, Stage
from moerge_workers.outgoing.owner_key import join_request
from support.browser import browser, visit
from support.federation import federation_of
from support.processes import Coordinator

_WIDTH = 1280
DOMAIN = "medicine"
"""The domain of the owner whose view is shown, also one of the demo's."""


@dataclass(frozen=True)
class Picture:
    """A page, and the height in pixels to which it is cut; None: all of it."""

    name: str
    page: str
    height: int | None = None
    owner: bool = False


FIRST_HOUR = (Picture("first-steps", "versions", height=420), Picture("owners", "owners", height=360))
DEMO = (
    Picture("versions", "versions"),
    Picture("version", "versions/2", height=1500),
    Picture("owner", "versions", height=900, owner=True),
)


@contextmanager
def demo(home: Path) -> Iterator[tuple[Coordinator, str]]:
    """The demo's coordinator, and an owner's token."""
    server = Coordinator(home / "coordinator", (home / "operator-token").read_text())
    server.start()
    try:
        with server.client() as operator:
            token = operator.add_token(NewToken(role=Role.OWNER, owner=f"{DOMAIN}-owner")).secret
        yield server, token
    finally:
        server.stop()


@contextmanager
def first_hour() -> Iterator[tuple[Coordinator, str]]:
    """A coordinator with a seed and two owners: one has contributed, the other's worker is computing."""
    domains = (DOMAIN, "law")
    done = {"stage": Stage.WAITING, "shards_done": 40, "tokens_per_second": 0, "seconds_left": None}
    at_work = {"stage": Stage.COMPUTING, "shards_done": 12, "tokens_per_second": 5200, "seconds_left": 240}
    with TemporaryDirectory() as folder, federation_of(Path(folder), *domains) as made:
        made.contribute(made.body(), DOMAIN)
        for member, told in zip(made.members.values(), (done, at_work), strict=True):
            request = join_request(made.folder / f"{member.name}.pem", member.name, [member.domain])
            made.operator.approve(request, replace=True)
            member.client.tell_progress(Progress.model_validate({"domain": member.domain, "shards_total": 40, **told}))
        yield made.server, made.members[DOMAIN].token


def take(chromium: Browser, server: Coordinator, owner: str, picture: Picture, folder: Path) -> None:
    token, path = owner if picture.owner else server.operator_token, folder / f"dashboard-{picture.name}.png"
    with visit(chromium, server, token) as page:
        page.goto(f"{server.url}/dashboard/{picture.page}")
        if picture.height is None:
            page.screenshot(path=path, full_page=True)
        else:
            page.set_viewport_size({"width": _WIDTH, "height": picture.height})
            page.screenshot(path=path)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m screenshots", description=__doc__)
    parser.add_argument("demo", type=Path, help="the demo's home")
    parser.add_argument("folder", type=Path, help="where the pictures go")
    chosen = parser.parse_args()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    total = len(FIRST_HOUR) + len(DEMO)
    with browser() as chromium, LogProgress().track("pictures", total, "pictures") as tracker:
        for started, pictures in ((first_hour(), FIRST_HOUR), (demo(chosen.demo), DEMO)):
            with started as (server, owner):
                for picture in pictures:
                    take(chromium, server, owner, picture, chosen.folder)
                    tracker.advance(1)


if __name__ == "__main__":
    main()
