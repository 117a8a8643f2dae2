"""The way of this worker's router contributions from exact sums to the file that leaves."""

from collections.abc import Sequence
from pathlib import Path

from moerge.errors import MoergeError
from moerge.models.families.family import Family
from moerge.models.keeping import Keeping
from moerge.statistics.finisher import Finisher
from moerge_proto.statistics_file import Split
from moerge_workers.outgoing.ledger import spending, spent_file
from moerge_workers.settings import Settings


class Finishing(Finisher):
    """Router contributions leave as they are, and cost nothing. A subclass makes other files of exact sums.

    Attributes:
        name: of its line in `worker check`; empty: none.
        keepers: public keys of those who keep its masks.
        cost: of a contribution, to each of its documents.
        most: of all contributions together.
        alone: whether nothing else may leave that depends on the text (`require_alone`).
    """

    name: str = ""
    keepers: Sequence[str] = ()
    cost: float = 0.0
    most: float = 0.0
    alone: bool = False

    def of(self, split: Split) -> "Finishing":
        """The way of a split's contributions."""
        return self

    def spent(self, home: Path) -> Path | None:
        """The file of what contributions have cost each document; None: they cost nothing.

        Raises:
            MoergeError: the home's contributions so far don't allow this way.
        """
        if spending(spent_file(home))[0]:
            problem = "this home's documents have a privacy budget, which sums without noise would exceed"
            todo = "set it again, or use other documents and another home"
            raise MoergeError(problem, where="[privacy]", todo=todo)
        return None

    def overspent(self, documents: int) -> MoergeError:
        """The error of so many documents without room for the cost."""
        raise NotImplementedError

    def require_alone(
        self, settings: Settings, family: Family, found: Keeping, *, was_fitted: bool = False, had_head: bool = False
    ) -> None:
        """Requires settings by which nothing else leaves. An expert's parts may have been fitted, or had a head."""

    def report(self, settings: Settings) -> str:
        """Its line in `worker check`."""
        return ""

    def without_key(self, home: Path) -> str:
        """The consequence of a missing key; MoergeError: there must be one."""
        return "no key here or at the coordinator; contributions are unsigned"
