"""The statistics of the owner's documents: the sums to send, and the ledgers of the sent ones."""

from dataclasses import dataclass
from pathlib import Path

from moerge.statistics.passes import Pass
from moerge.statistics.windows import ComputeWindows
from moerge_proto.digests import digest_of
from moerge_proto.statistics_file import Manifest
from moerge_workers.computing.finishing import Finishing
from moerge_workers.computing.pending import PendingStatistics
from moerge_workers.contributing.documents import Documents
from moerge_workers.outgoing.ledger import Ledger


@dataclass(frozen=True)
class Statistics:
    """The statistics of the owner's documents.

    Attributes:
        compute: sums windows of shards, for example on Ray actors.
        finishing: makes router contributions of exact sums.
    """

    documents: Documents
    compute: ComputeWindows
    finishing: Finishing

    def ledger(self, blank: Manifest) -> Path:
        """The path of a contribution's ledger: one for all contributions that count together, with any settings.

        Under a body that is one for any MLPs: the first layer's sums don't depend on them, so the difference of two
        contributions is that of their documents.
        """
        own = {"expert"} if blank.under is None else set[str]()
        fields = blank.model_dump(include={"kind", "owner", "domain", "body", "split"} | own)
        return self.documents.settings.home / "contributions" / f"{digest_of(fields)}.sqlite"

    def last_documents(self, blank: Manifest) -> Path:
        """The path of the documents of the last router contribution under any body."""
        fields = blank.model_dump(include={"kind", "owner", "domain", "split"})
        return self.documents.settings.home / "contributions" / f"{digest_of(fields)}.last.sqlite"

    def pending(self, blank: Manifest, work: Pass, ledger: Ledger, finishing: Finishing) -> PendingStatistics:
        """The statistics of documents that are not in the ledger; `finishing`: of the blank's kind and split."""
        source = self.documents.settings, self.documents.data, self.documents.events
        return PendingStatistics(*source, self.compute, blank, work, ledger, finishing)
