"""The publication of a version: writes its weights, solves its routers, assigns its number."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

from dbos import DBOS
from sqlalchemy import select

from moerge.errors import ContributionError, SolveError
from moerge.models.config import read_config
from moerge.models.reader import Checkpoint
from moerge.models.sources import hub_id
from moerge.routers.influence import MOST_LAYERS
from moerge.trunk.merge import DENSE_TRUNK_FILE
from moerge.versions.card import Contributed, ExpertRecord
from moerge.versions.files import FilePlan
from moerge.versions.plan import (
    Slot,
    Solution,
    VersionInputs,
    VersionPlan,
    measure_influence,
    plan_version,
    solve_lineage,
)
from moerge_coordinator.domain import trunks, versions
from moerge_coordinator.domain.ports import Ports
from moerge_coordinator.domain.withdrawal import require_usable
from moerge_coordinator.log import progress
from moerge_coordinator.metrics import Metrics
from moerge_coordinator.storage.messages import contains
from moerge_coordinator.storage.tables import ArtifactRow, ContributionRow, ExpertRow
from moerge_coordinator.workflows.steps import GONE, Outcome, Work, telling_problems
from moerge_proto.digests import digest_of
from moerge_proto.influence import VersionInfluence
from moerge_proto.versions import Lineage, VersionFile


@DBOS.dbos_class()
class PublishVersion(Work):
    title = "solving a version"

    def __init__(self, ports: Ports, metrics: Metrics) -> None:
        self._metrics = metrics
        self._publishing = threading.Lock()
        super().__init__(ports)

    @DBOS.workflow()
    def publish_version(self, lineage: dict[str, Any]) -> Outcome:
        while True:
            for step in (self._write_weights, self._solve):
                if "problem" in (outcome := step(lineage)):
                    return outcome
            if "problem" in (outcome := self._measure(lineage)):
                return outcome
            if (outcome := self._publish(lineage, outcome["result"])) != GONE:
                return outcome

    @DBOS.step()
    @telling_problems
    def _write_weights(self, lineage: dict[str, Any]) -> None:
        made = Lineage.model_validate(lineage)
        with self.ports.database.reading() as session:
            require_usable(session, made.experts, made.contributions)
        for plan in self._plan(made).shared:
            self._artifact(plan, made)

    @DBOS.step()
    @telling_problems
    def _solve(self, lineage: dict[str, Any]) -> None:
        made = Lineage.model_validate(lineage)
        layers = read_config(self.ports.folders.expert(made.experts[0])).num_hidden_layers
        with progress().track(f"solving routers of {', '.join(made.domains)}", layers, "layers") as tracker:
            for plan in self._plan(made, lambda layer: tracker.advance(1)).solved:
                self._artifact(plan, made)

    @DBOS.step()
    @telling_problems
    def _measure(self, lineage: dict[str, Any]) -> dict[str, Any] | None:
        """The influence of each owner; None if the version is already published.

        After a failed measurement, the version is published with a warning.
        """
        made = Lineage.model_validate(lineage)
        with self.ports.database.reading() as session:
            if versions.number_of(session, made)[1]:
                return None
            require_usable(session, made.experts, made.contributions)
        layers = read_config(self.ports.folders.expert(made.experts[0])).num_hidden_layers
        try:
            with progress().track("measuring the owners' influence", min(layers, MOST_LAYERS), "layers") as tracker:
                found = measure_influence(made, self._inputs(made), lambda layer: tracker.advance(1))
        except (ContributionError, SolveError) as error:
            found = VersionInfluence(layers=[], domains=[], warnings=[f"Influence can't be measured: {error}"])
        return found.model_dump(mode="json")

    @DBOS.step()
    @telling_problems
    def _publish(self, lineage: dict[str, Any], influence: dict[str, Any] | None) -> str | None:
        made, ports = Lineage.model_validate(lineage), self.ports
        with self._publishing:
            with ports.database.reading() as session:
                number, published = versions.number_of(session, made)
            if published:
                return str(number)
            files = [self._artifact(plan, made) for plan in self._plan(made).files]
            ports.folders.show_version(number, files)
            measured = VersionInfluence.model_validate(influence)
            with ports.database.transaction("publish version") as session:
                done = versions.publish(session, ports.blobs, number, made, files, measured)
            return str(number) if done else None

    def _artifact(self, plan: FilePlan, lineage: Lineage) -> VersionFile:
        """The planned file as a blob, written only if no version has it."""
        database, blobs = self.ports.database, self.ports.blobs
        maker = digest_of(lineage.model_dump(mode="json"))
        if plan.sha256 is not None and (size := blobs.size(plan.sha256)) is not None:
            return VersionFile(name=plan.name, sha256=plan.sha256, size=size, new=False, tensors=len(plan.tensors))
        with database.reading() as session:
            row = session.get(ArtifactRow, plan.key)
        if row is None or not blobs.has(row.sha256):
            entry = blobs.put(plan.name, plan.write)
            row = ArtifactRow(key=plan.key, sha256=entry.sha256, size=entry.size, maker=maker)
            with database.transaction("keep derived file") as session:
                row = session.merge(row)
        new, tensors = row.maker == maker, len(plan.tensors)
        return VersionFile(name=plan.name, sha256=row.sha256, size=row.size, new=new, tensors=tensors)

    def _plan(self, lineage: Lineage, solved: Callable[[int], None] = lambda layer: None) -> VersionPlan:
        """The version's files."""

        def solve(lineage: Lineage, inputs: VersionInputs) -> Solution:
            return self._metrics.timed_solve(lambda: solve_lineage(lineage, inputs, solved))

        return plan_version(lineage, self._inputs(lineage), solve)

    def _inputs(self, lineage: Lineage) -> VersionInputs:
        """The rows and blobs of a lineage."""
        blobs, folders = self.ports.blobs, self.ports.folders
        with self.ports.database.reading() as session:
            experts = {row.digest: row for row in session.scalars(select(ExpertRow))}
            parts = {row.digest: row for row in session.scalars(select(ContributionRow))}
            trunk = trunks.find(session, lineage.trunk)
        sha256 = next(file.sha256 for file in trunk.files if file.name == DENSE_TRUNK_FILE)
        slots = [experts[digest] for digest in lineage.experts]
        return VersionInputs(
            slots=[
                Slot(_record(row, experts), folders.weights(row.digest), folders.expert(row.trained)) for row in slots
            ],
            trunk=Checkpoint.of_file(blobs.source(sha256)),
            trunk_sha256=sha256,
            method=trunk.method,
            merged=[_record(experts[digest], experts) for digest in contains(trunk)],
            config=folders.expert(trunk.experts[0]),
            contributed=[_contributed(parts[digest]) for digest in lineage.contributions],
            statistics=lambda: [blobs.source(digest) for digest in lineage.contributions],
        )


def _record(row: ExpertRow, experts: Mapping[str, ExpertRow]) -> ExpertRecord:
    source = hub_id(experts[row.trained].source or "")
    return ExpertRecord(row.digest, row.domain, row.owner, row.license, row.fitted_from, source)


def _contributed(row: ContributionRow) -> Contributed:
    return Contributed(row.digest, row.domain, row.owner, row.tokens, row.documents)
