"""The acceptance of a contribution: checks its sums, which takes minutes for large models, then activates it."""

import threading
from typing import Any

from dbos import DBOS

from moerge_coordinator.domain import contributions, owners
from moerge_coordinator.workflows.steps import PASSING, Outcome, Work, telling_problems
from moerge_proto.contributions import NewContribution
from moerge_proto.owners import Role
from moerge_proto.problems import ProblemType

_KEPT = (*PASSING, ProblemType.FORBIDDEN.urn)
"""Types of problems that leave the upload: it can be sent again as it is, later or signed by another key."""
_CHECKS = threading.BoundedSemaphore(2)  # each needs memory for a layer's gram (law 8), and one core


@DBOS.dbos_class()
class TakeInContribution(Work):
    title = "taking in a contribution"

    @DBOS.workflow()
    def take_in_contribution(self, owner: str, new: dict[str, Any]) -> Outcome:
        outcome = self._check(owner, new)
        if "problem" not in outcome:
            outcome = self._accept(new, outcome["result"])
        if "problem" in outcome and outcome["problem"]["type"] not in _KEPT:
            self._discard(owner, new["sha256"])
        return outcome

    @DBOS.step()
    @telling_problems
    def _check(self, owner: str, new: dict[str, Any]) -> dict[str, Any]:
        with self.ports.database.reading() as session:
            if contributions.find(session, owner, new["sha256"]) is not None:
                return {}
            caller = owners.identity(session, Role.OWNER, owner)
        with _CHECKS:
            return contributions.check(self.ports, caller, NewContribution.model_validate(new)).model_dump()

    @DBOS.step()
    @telling_problems
    def _accept(self, new: dict[str, Any], checked: dict[str, Any]) -> str:
        result = contributions.Checked.model_validate(checked)
        return contributions.accept(self.ports, NewContribution.model_validate(new), result).digest

    @DBOS.step()
    def _discard(self, owner: str, sha256: str) -> None:
        self.ports.uploads.discard(owner, [sha256])
