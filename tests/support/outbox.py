"""An outbox without a worker."""

from pathlib import Path
from typing import Any

from moerge_workers.outgoing.history import History, Item
from moerge_workers.outgoing.outbox import Outbox
from moerge_workers.policy import Kind
from moerge_workers.settings import Settings
from moerge_workers.watching.events import Events
from moerge_workers.watching.status import Status
from moerge_workers.watching.view import Lines

COORDINATOR = "https://example.org"


def outbox_of(history: History, folder: Path, *, dry_run: bool = False, **policy: Any) -> Outbox:
    given = {"coordinator": COORDINATOR, "token": "x", "domain": "law", "expert": folder, "data": ["x"]}
    how = {"home": folder, "once": True, "held_out_share": 0.5, "dry_run": dry_run, "policy": policy}
    return Outbox(
        Settings.model_validate({**given, **how}), history, Events(Status(folder, "law", COORDINATOR), Lines())
    )


def item_of(kind: Kind, folder: Path, digest: str = "0" * 64) -> Item:
    return Item(digest, COORDINATOR, kind, f"law: {kind}", 1, "", str(folder))
