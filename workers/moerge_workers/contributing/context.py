"""The context that the stages of a run share."""

import platform
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers

from moerge import __version__
from moerge.client.client import Client
from moerge.models.expert_folder import DenseExpert
from moerge.statistics.passes import Pass
from moerge.statistics.windows import ComputeWindows
from moerge_proto.digests import digest_of
from moerge_proto.statistics_file import Manifest
from moerge_workers.computing.pending import PendingStatistics
from moerge_workers.data.documents import Data
from moerge_workers.leaving.ledger import Ledger
from moerge_workers.leaving.outbox import Outbox
from moerge_workers.settings import Settings
from moerge_workers.watching.events import Events

SOFTWARE = {
    "moerge": __version__,
    "torch": str(torch.__version__),
    "transformers": transformers.__version__,
    "python": platform.python_version(),
}
"""Builds that make the owner's contributions."""


@dataclass(frozen=True)
class Context:
    """One run of the worker.

    Attributes:
        settings: the worker's.
        client: of the coordinator.
        outbox: the single exit of this machine.
        data: the owner's documents.
        events: receives events and messages.
        expert: the domain's, with its owner; config and files are read once.
        compute: sums shards, for example on Ray actors.
    """

    settings: Settings
    client: Client
    outbox: Outbox
    data: Data
    events: Events
    expert: DenseExpert
    compute: ComputeWindows

    def is_replaced(self, trunk: str) -> bool:
        """Tell whether a trunk is no longer the current one."""
        current = self.client.current_trunk()
        return current is None or current.digest != trunk

    def ledger(self, blank: Manifest) -> Path:
        """The path of a contribution's ledger: one for all contributions that count together, with any settings."""
        fields = blank.model_dump(include={"kind", "owner", "expert", "domain", "trunk", "split"})
        return self.settings.home / "contributions" / f"{digest_of(fields)}.sqlite"

    def pending(self, blank: Manifest, work: Pass, ledger: Ledger) -> PendingStatistics:
        """The statistics of documents that are not in the ledger."""
        return PendingStatistics(self.settings, self.data, self.events, self.compute, blank, work, ledger)
