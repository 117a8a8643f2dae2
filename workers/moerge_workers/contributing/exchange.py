"""The exchange with the coordinator: its demands, and the contributions there."""

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from moerge.client.client import Client
from moerge_proto.contributions import Contribution, Kind, NewContribution, signed_contribution
from moerge_proto.demands import Demands
from moerge_proto.masks import Seals
from moerge_proto.statistics_file import StatisticsFile
from moerge_workers.computing.nodes import versions
from moerge_workers.outgoing.history import Item
from moerge_workers.outgoing.outbox import Outbox
from moerge_workers.outgoing.owner_key import signature
from moerge_workers.outgoing.public_log import PublicLog

SOFTWARE = {**versions(), "torch": str(torch.__version__), "python": platform.python_version()}
"""Builds that make the owner's contributions."""
Beside = Callable[[Path, str], Seals | None]
"""(contribution's file, its digest) -> the message that is sent beside it; None: nothing."""


@dataclass(frozen=True)
class Exchange:
    """The exchange of one owner's worker with the coordinator.

    Attributes:
        outbox: the single exit of this machine.
        expert: digest of the owner's dense expert.
        beside: gives what is sent beside a contribution's file.
    """

    client: Client
    outbox: Outbox
    expert: str
    beside: Beside

    @property
    def log(self) -> PublicLog:
        return PublicLog(self.outbox.history, self.outbox.settings.coordinator)

    def demands(self, seen: Demands | None = None) -> Demands:
        """The coordinator's demands; with `seen`, once they differ, or after a minute."""
        return self.client.demands(self.expert, seen)

    def outdated(self, is_outdated: Callable[[Demands], bool]) -> Callable[[], bool]:
        """A function: whether the demands are `is_outdated`. From the second call on, it first waits for a change."""
        seen: Demands | None = None

        def outdated() -> bool:
            nonlocal seen
            seen = self.demands(seen)
            return is_outdated(seen)

        return outdated

    def replaced(self, body: str) -> Callable[[], bool]:
        """As `outdated`: a function whether a body is no longer the current one."""
        return self.outdated(lambda demands: demands.body != body)

    def active(self, kind: Kind) -> dict[str, Contribution]:
        """Digest -> active contribution; records the state of all in the history."""
        rows = list(self.client.contributions(kind))
        self.outbox.settle(rows)
        return {row.digest: row for row in rows if row.active}

    def send(self, item: Item, supersedes: Sequence[str]) -> Contribution:
        """Upload and sign an allowed contribution's file; it replaces the ones that it `supersedes`."""
        with self.outbox.sending(item, supersedes):
            title = f"uploading the {item.kind} contribution"
            path = Path(item.place)
            masks = self.beside(path, item.digest)
            self.client.upload(path, self.outbox.events, title=title, compress=masks is None)
            with StatisticsFile(path) as file:
                signed = signature(self.outbox.settings.home, signed_contribution(file.manifest, item.digest))
            new = NewContribution(
                sha256=item.digest, supersedes=list(supersedes), signature=signed, masks=masks, software=SOFTWARE
            )
            return self.client.contribute(new)
