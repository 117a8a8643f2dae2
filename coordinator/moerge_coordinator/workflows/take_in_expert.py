"""The acceptance of an expert: makes an adapter's files, checks the weights."""

import shutil
from typing import Any

from dbos import DBOS
from sqlalchemy.orm import Session

from moerge.models.expert_folder import require_finite
from moerge_coordinator.domain import experts
from moerge_coordinator.domain.adapters import ADAPTERS, merge_adapter
from moerge_coordinator.log import progress
from moerge_coordinator.storage.messages import message
from moerge_coordinator.workflows.steps import Outcome, Work, telling_problems
from moerge_proto.experts import Expert
from moerge_proto.problems import Problem


@DBOS.dbos_class()
class TakeInExpert(Work):
    title = "taking in an expert"

    @DBOS.workflow()
    def take_in_expert(self, digest: str) -> Outcome:
        outcome: Outcome = {}
        for step in (self._merge_adapter, self._check_weights):
            if "problem" in (outcome := step(digest)):
                self._refuse(digest, outcome["problem"])
                return outcome
        return outcome

    @DBOS.step()
    @telling_problems
    def _merge_adapter(self, digest: str) -> None:
        """Makes the files of an adapter's expert, with the same checks as uploads."""
        with self.ports.database.reading() as session:
            row = experts.find(session, digest)
        if row.family or row.adapter is None:
            return
        entries = merge_adapter(self.ports, row, row.adapter)
        shutil.rmtree(self.ports.settings.home / ADAPTERS / digest, ignore_errors=True)

        def made(session: Session, family: str) -> Expert:
            row = experts.find(session, digest)
            row.family, row.files = family, entries
            return message(Expert, row)

        title = f"expert of {row.domain!r}"
        experts.add_checked(self.ports, row.owner, entries, title, lambda session: None, made, row.parts)

    @DBOS.step()
    @telling_problems
    def _check_weights(self, digest: str) -> str:
        checkpoint = self.ports.folders.expert(digest).checkpoint
        total = sum(spec.bytes for spec in checkpoint.specs.values())
        with progress().track(f"expert {digest[:12]}: checking weights", total, "B") as tracker:
            require_finite(checkpoint, tracker)
        with self.ports.database.transaction("accept expert") as session:
            experts.accept(session, digest)
        return digest

    @DBOS.step()
    def _refuse(self, digest: str, problem: dict[str, Any]) -> None:
        with self.ports.database.transaction("refuse expert") as session:
            row = experts.refuse(session, digest, Problem.model_validate(problem))
        if row is None:  # a repetition after a crash; meanwhile another expert has replaced it
            return
        self.ports.folders.drop([digest])
        shutil.rmtree(self.ports.settings.home / ADAPTERS / digest, ignore_errors=True)
        self.ports.uploads.discard(row.owner, [file.sha256 for file in row.files])
