"""The context that the stages of a run share."""

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import transformers

from moerge import __version__
from moerge.client.client import Client
from moerge.documents.fitting_sample import fitting_sample
from moerge.documents.splits import text_digest
from moerge.models.expert_folder import DenseExpert
from moerge.models.tokens import Tokens
from moerge.statistics.passes import Pass
from moerge.statistics.windows import ComputeWindows
from moerge_proto.contributions import Contribution, Kind, NewContribution, signed_contribution
from moerge_proto.demands import Demands
from moerge_proto.digests import digest_of
from moerge_proto.masks import Seals
from moerge_proto.progress import Stage
from moerge_proto.statistics_file import Manifest, StatisticsFile, StatisticsSettings
from moerge_workers.computing.finishing import Finishing
from moerge_workers.computing.pending import PendingStatistics
from moerge_workers.data.documents import Data
from moerge_workers.data.first_documents import read_first
from moerge_workers.outgoing.history import Item
from moerge_workers.outgoing.ledger import Ledger
from moerge_workers.outgoing.outbox import Outbox
from moerge_workers.outgoing.owner_key import signature
from moerge_workers.settings import Settings
from moerge_workers.watching.events import Events

SOFTWARE = {
    "moerge": __version__,
    "torch": str(torch.__version__),
    "transformers": transformers.__version__,
    "python": platform.python_version(),
}
"""Builds that make the owner's contributions."""
Beside = Callable[[Path, str], Seals | None]
"""(contribution's file, its digest) -> the message that is sent beside it; None: nothing."""


@dataclass(frozen=True)
class Context:
    """One run of the worker.

    Attributes:
        outbox: the single exit of this machine.
        data: the owner's documents.
        expert: the domain's, with its owner; config and files are read once.
        compute: sums shards, for example on Ray actors.
        finishing: makes router contributions of exact sums.
        beside: gives what is sent beside a contribution's file.
    """

    settings: Settings
    client: Client
    outbox: Outbox
    data: Data
    events: Events
    expert: DenseExpert
    compute: ComputeWindows
    finishing: Finishing
    beside: Beside

    def demands(self, seen: Demands | None = None) -> Demands:
        """The coordinator's demands; with `seen`, once they differ, or after a minute."""
        return self.client.demands(self.expert.digest, seen)

    def is_replaced(self, body: str) -> bool:
        """Tell whether a body is no longer the current one."""
        return self.demands().body != body

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

    def digests(self) -> set[str]:
        """The digests of the expert's parts at the coordinator."""
        return {row.digest for row in self.client.experts() if row.parts.expert == self.expert.digest}

    def look_at_data(self) -> None:
        """Read the first documents, to find unusable data before anything is sent, and print their counts.

        Raises:
            MoergeError: documents are unreadable, or too few.
        """
        self.events.enter(Stage.READING)
        limits = self.finishing.settings(self.settings.statistics)
        first = read_first(self.settings, self.data, self.expert.config.hidden_size, limits)
        self.events.say(f"data: {first.summary}")

    def ledger(self, blank: Manifest) -> Path:
        """The path of a contribution's ledger: one for all contributions that count together, with any settings.

        Under a body that is one for any MLPs: the first layer's sums don't depend on them, so the difference of two
        contributions is that of their documents.
        """
        own = {"expert"} if blank.under is None else set[str]()
        fields = blank.model_dump(include={"kind", "owner", "domain", "body", "split"} | own)
        return self.settings.home / "contributions" / f"{digest_of(fields)}.sqlite"

    def last_documents(self, blank: Manifest) -> Path:
        """The path of the documents of the last router contribution under any body."""
        fields = blank.model_dump(include={"kind", "owner", "domain", "split"})
        return self.settings.home / "contributions" / f"{digest_of(fields)}.last.sqlite"

    def pending(
        self, blank: Manifest, work: Pass, ledger: Ledger, finishing: Finishing | None = None
    ) -> PendingStatistics:
        """The statistics of documents that are not in the ledger; `finishing`: of router statistics."""
        given = self.settings, self.data, self.events, self.compute, blank, work, ledger
        return PendingStatistics(*given, finishing or Finishing())

    def sample(self, limits: StatisticsSettings, tokens: int, least_documents: int, title: str) -> list[list[Tokens]]:
        """The rows of each document of a sample of the statistics documents, within the `limits`."""
        self.events.enter(Stage.READING)
        with self.events.track(title, self.data.size(), "B") as tracker:
            documents = (
                (text_digest(document.text), partial(self.data.encode, document))
                for _, split, document in self.data.documents(tracker)
                if split == "statistics"
            )
            return fitting_sample(documents, limits, tokens, least_documents)

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
            self.client.upload(path, self.events, title=title, compress=masks is None)
            with StatisticsFile(path) as file:
                signed = signature(self.settings.home, signed_contribution(file.manifest, item.digest))
            new = NewContribution(
                sha256=item.digest, supersedes=list(supersedes), signature=signed, masks=masks, software=SOFTWARE
            )
            return self.client.contribute(new)
