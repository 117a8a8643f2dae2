"""The acceptance of an expert: fetches or makes its files, checks its weights, merges it on request."""

import shutil
from typing import Any

import torch
from dbos import DBOS
from sqlalchemy.orm import Session

from moerge.errors import IncompatibleExpertError
from moerge.models.dense import stored_name
from moerge.models.dense_files import Dense
from moerge.models.distance import require_near_others
from moerge.models.expert_folder import require_finite
from moerge.models.reader import Checkpoint
from moerge_coordinator.domain import bodies, experts
from moerge_coordinator.domain.adapters import merge_adapter
from moerge_coordinator.domain.ports import Ports
from moerge_coordinator.domain.seeds import find_seed, require_near_seed
from moerge_coordinator.domain.sources import fetch
from moerge_coordinator.log import progress
from moerge_coordinator.storage.messages import message
from moerge_coordinator.storage.tables import ExpertRow
from moerge_coordinator.workflows.merge_body import MergeBody
from moerge_coordinator.workflows.steps import Outcome, Work, telling_problems
from moerge_proto.experts import Expert
from moerge_proto.messages import FileEntry
from moerge_proto.problems import Problem


def _named(row: ExpertRow) -> str:
    return f"the expert of {row.domain!r} (owner {row.owner!r})"


def _require_head_of(dense: Dense, parts: Checkpoint, who: str) -> None:
    """Requires the registered dense expert's own head in its parts, because a fitted MLP is compared with nothing."""
    own = dense.checkpoint
    for name in dense.family.head_names:
        if not torch.equal(parts.tensor(name), own.tensor(stored_name(own, name))):
            what, todo = f"{who} has another head in its parts", "make the parts again from the registered expert"
            raise IncompatibleExpertError(what, where=name, todo=todo)


@DBOS.dbos_class()
class TakeInExpert(Work):
    title = "taking in an expert"

    def __init__(self, ports: Ports, merge: MergeBody) -> None:
        self._merge = merge
        super().__init__(ports)

    @DBOS.workflow()
    def take_in_expert(self, digest: str, body: str) -> Outcome:
        outcome: Outcome = {}
        for step in (self._fetch, self._check_weights):
            if "problem" in (outcome := step(digest)):
                self._refuse(digest, outcome["problem"])
                return outcome
        if body == "remerge" and (lineage := self._with_newcomer(digest)) is not None:
            self._merge.merge_body(lineage)
        return outcome

    @DBOS.step()
    @telling_problems
    def _fetch(self, digest: str) -> None:
        """Fetches the files of an expert with a source, or merges its adapter, with the same checks as uploads."""
        with self.ports.database.reading() as session:
            row = experts.find(session, digest)
        if row.family:
            return
        if row.adapter is not None:
            entries = merge_adapter(self.ports, row, row.adapter)
        else:
            entries = [self._fetched(row, file.name, file.sha256) for file in row.files]
        shutil.rmtree(self.ports.settings.home / "fetching" / digest, ignore_errors=True)

        def fetched(session: Session, family: str) -> Expert:
            row = experts.find(session, digest)
            row.family, row.files = family, entries
            return message(Expert, row)

        title = f"expert of {row.domain!r}"
        experts.add_checked(self.ports, row.owner, entries, title, lambda session: None, fetched, row.parts)

    def _fetched(self, row: ExpertRow, name: str, sha256: str) -> FileEntry:
        uploads, settings = self.ports.uploads, self.ports.settings
        size = uploads.held_size(row.owner, sha256)
        if size is None:
            part, address = settings.home / "fetching" / row.digest / name, f"{row.source}".rstrip("/") + f"/{name}"
            with progress().track(f"fetching {name}", 0, "B") as tracker:
                fetch(address, part, uploads.room(row.owner), settings.sources, tracker.advance)
            size = part.stat().st_size
            uploads.keep(row.owner, FileEntry(name=name, sha256=sha256, size=size), part, address)
        return FileEntry(name=name, sha256=sha256, size=size)

    @DBOS.step()
    @telling_problems
    def _check_weights(self, digest: str) -> str:
        files = self.ports.folders.expert(digest)
        checkpoint = files.checkpoint
        with self.ports.database.reading() as session:
            new = experts.find(session, digest)
            seed = find_seed(session, new.parts)
        total = sum(spec.bytes for spec in checkpoint.specs.values())
        with progress().track(f"expert {digest[:12]}: checking weights", total, "B") as tracker:
            require_finite(checkpoint, tracker)
        if seed is not None and new.own_head:
            require_near_seed(self.ports, files, seed, _named(new))
        elif seed is None and new.parts is not None:
            _require_head_of(self.ports.folders.expert(new.parts.expert), checkpoint, _named(new))
        while True:
            with self.ports.database.reading() as session:
                compared = experts.references(session, digest)
            others = {_named(row): self.ports.folders.expert(row.digest).checkpoint for row in compared}
            title = f"expert {digest[:12]}: comparing weights"
            with progress().track(title, total * len(others), "B") as tracker:
                limit = self.ports.settings.expert_max_distance
                require_near_others(files, others, limit, _named(new), tracker)
            with self.ports.database.transaction("accept expert") as session:
                if experts.accept(session, digest, [row.digest for row in compared]):
                    return digest

    @DBOS.step()
    def _with_newcomer(self, digest: str) -> dict[str, Any] | None:
        with self.ports.database.reading() as session:
            lineage = bodies.remerge(session, digest)
        return None if lineage is None else lineage.model_dump(mode="json")

    @DBOS.step()
    def _refuse(self, digest: str, problem: dict[str, Any]) -> None:
        with self.ports.database.transaction("refuse expert") as session:
            row = experts.refuse(session, digest, Problem.model_validate(problem))
        if row is None:  # a repetition after a crash; meanwhile another expert has replaced it
            return
        self.ports.folders.drop([digest])
        shutil.rmtree(self.ports.settings.home / "fetching" / digest, ignore_errors=True)
        self.ports.uploads.discard(row.owner, [file.sha256 for file in row.files])
