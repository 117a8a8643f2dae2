"""The publication of a version: writes its weights, solves its routers, assigns its number."""

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from dbos import DBOS

from moerge.build import build
from moerge.models.families.family import mlp_layers
from moerge.versions.file_plan import FilePlan, written
from moerge.versions.version_plan import (
    Solution,
    VersionInputs,
    VersionPlan,
    plan_version,
    solve_lineage,
)
from moerge_coordinator.domain import version_keys, versions
from moerge_coordinator.domain.ports import Ports, unmeasured
from moerge_coordinator.domain.provenance import provenance_of
from moerge_coordinator.domain.version_inputs import version_inputs
from moerge_coordinator.domain.withdrawal import require_inputs
from moerge_coordinator.log import progress
from moerge_coordinator.metrics import Metrics
from moerge_coordinator.storage.composed import digest as composed_digest
from moerge_coordinator.storage.tables import ArtifactRow, ComposedRow, VersionRow, notify
from moerge_coordinator.workflows.steps import GONE, Outcome, Work, telling_problems
from moerge_proto.composed import slot_segments
from moerge_proto.digests import digest_of, sha256_hex
from moerge_proto.influence import VersionInfluence
from moerge_proto.messages import FileEntry
from moerge_proto.ranges import opened
from moerge_proto.version_files import FUSED_FILE, expert_name
from moerge_proto.version_names import part_digest
from moerge_proto.version_signatures import (
    PROVENANCE_FILE,
    SIGNATURE_FILE,
    fingerprint,
    public_pem,
    sign_version,
    signed_bundle,
)
from moerge_proto.versions import Lineage, PublicLoss, VersionFile


@dataclass(frozen=True)
class _Publication:
    """A lineage with its inputs and planned files, which all steps share."""

    lineage: Lineage
    inputs: VersionInputs
    plan: VersionPlan


@DBOS.dbos_class()
class PublishVersion(Work):
    title = "solving a version"

    def __init__(self, ports: Ports, metrics: Metrics) -> None:
        self._metrics = metrics
        self._publishing = threading.Lock()
        self._publications: dict[str, _Publication] = {}  # by the lineage's digest
        super().__init__(ports)

    @DBOS.workflow()
    def publish_version(self, lineage: dict[str, Any], accept_loss: bool, part_of: int | None) -> Outcome:
        """Publishes the version of a lineage, or the part of version `part_of` with this lineage."""
        try:
            outcome = self._published(lineage, accept_loss, part_of)
        except Exception:
            self._notify_failure(DBOS.workflow_id or "")
            raise
        finally:
            self._forget(lineage)
        if "problem" in outcome:
            self._notify_failure(DBOS.workflow_id or "")
        return outcome

    def _published(self, lineage: dict[str, Any], accept_loss: bool, part_of: int | None) -> Outcome:
        score = partial(self._score, accept_loss=accept_loss)
        write = partial(self._write_weights, part_of=part_of)
        steps: list[Callable[[dict[str, Any]], Outcome]] = [write, self._solve]
        if part_of is None:
            steps += [score, self._measure]
        while True:
            results = []
            for step in steps:
                if "problem" in (outcome := step(lineage)):
                    return outcome
                results.append(outcome["result"])
            loss, influence = results[2:] or (None, None)
            if (outcome := self._publish(lineage, loss, influence, part_of)) != GONE:
                return outcome
            self._forget(lineage)

    @DBOS.step()
    def _notify_failure(self, workflow: str) -> None:
        with self.ports.database.transaction("notify of failure") as session:
            name = f"msg_{digest_of({'failed': workflow})[:24]}"  # the same if the step is repeated
            notify(session, "version.failed", name=name, workflow=workflow)

    @DBOS.step()
    @telling_problems
    def _write_weights(self, lineage: dict[str, Any], part_of: int | None) -> None:
        made = Lineage.model_validate(lineage)
        with self.ports.database.reading() as session:
            require_inputs(session, made)
        for file in self._publication(lineage).plan.shared:
            self._artifact(file, made, part_of)

    @DBOS.step()
    @telling_problems
    def _solve(self, lineage: dict[str, Any]) -> None:
        publication = self._publication(lineage)
        for file in publication.plan.solved:
            self._artifact(file, publication.lineage)

    @DBOS.step()
    @telling_problems
    def _score(self, lineage: dict[str, Any], accept_loss: bool) -> dict[str, Any] | None:
        """The loss on the public texts; None if it isn't measured, or the version is already published."""
        made = Lineage.model_validate(lineage)
        with self.ports.database.reading() as session:
            if math.isinf(self.ports.settings.publication_max_rise) or versions.published(session, made):
                return None
            require_inputs(session, made)
        from moerge_coordinator.domain.public_loss import measured  # its imports of models take seconds

        files = [self._artifact(file, made) for file in self._publication(lineage).plan.files]
        loss = measured(self.ports, made, files, accept_loss=accept_loss)
        return None if loss is None else loss.model_dump(mode="json")

    @DBOS.step()
    @telling_problems
    def _measure(self, lineage: dict[str, Any]) -> dict[str, Any] | None:
        """The influence of each owner; None if the version is already published."""
        made = Lineage.model_validate(lineage)
        with self.ports.database.reading() as session:
            if versions.published(session, made):
                return None
            require_inputs(session, made)
        return self.ports.influence(made, self._publication(lineage).inputs).model_dump(mode="json")

    @DBOS.step()
    @telling_problems
    def _publish(
        self,
        lineage: dict[str, Any],
        loss: dict[str, Any] | None,
        influence: dict[str, Any] | None,
        part_of: int | None,
    ) -> str | None:
        made, ports = Lineage.model_validate(lineage), self.ports
        with self._publishing:
            with ports.database.reading() as session:
                if (published := versions.published(session, made, part_of)) is not None:
                    return published.name
                number = versions.next_number(session, part_of)
                key = version_keys.signing_key(session, ports.settings.home)
            files = [self._artifact(file, made, part_of) for file in self._publication(lineage).plan.files]
            new, made_by = VersionRow(number=number, lineage=made, files=files), build()
            if part_of is not None:
                new.part_of, new.part = part_of, part_digest(made.experts)
            new.release, new.commit = made_by.version, made_by.commit
            measured = unmeasured() if influence is None else VersionInfluence.model_validate(influence)
            new.influence = measured
            new.public_loss = None if loss is None else PublicLoss.model_validate(loss)
            if key is not None:
                self._sign(new, key)
            ports.folders.show_version(new.name, [*files, *new.attestations])
            with ports.database.transaction("publish version") as session:
                done = versions.publish(session, ports.blobs, new)
            return new.name if done else None

    def _sign(self, new: VersionRow, key: EllipticCurvePrivateKey) -> None:
        digests = {file.name: file.sha256 for file in new.files}
        with self.ports.database.reading() as session:
            statement = provenance_of(session, new).statement()
        signature = sign_version(key, new.whole, new.release, digests, sha256_hex(statement), new.part)
        new.signature = self._stored(SIGNATURE_FILE, signature)
        new.provenance = self._stored(PROVENANCE_FILE, signed_bundle(key, statement))
        new.key = fingerprint(public_pem(key))

    def _stored(self, name: str, bundle: str) -> FileEntry:
        return self.ports.blobs.put(name, lambda out: written(bundle.encode(), out))

    def _publication(self, lineage: dict[str, Any]) -> _Publication:
        """The publication, made once; again only in a workflow that resumes after a crash, or if files were removed."""
        name = digest_of(lineage)
        if name not in self._publications:
            made = Lineage.model_validate(lineage)
            inputs = version_inputs(self.ports.database, self.ports.blobs, self.ports.folders, made)
            self._publications[name] = _Publication(made, inputs, plan_version(made, inputs, self._solution))
        return self._publications[name]

    def _forget(self, lineage: dict[str, Any]) -> None:
        self._publications.pop(digest_of(lineage), None)

    def _artifact(self, plan: FilePlan, lineage: Lineage, part_of: int | None = None) -> VersionFile:
        """The planned file as a blob, written only if no version has it.

        A part's MLPs in other slots than in its version aren't written: they are composed of the version's file.
        """
        database, blobs = self.ports.database, self.ports.blobs
        maker = digest_of(lineage.model_dump(mode="json"))
        if plan.sha256 is not None and (size := blobs.size(plan.sha256)) is not None:
            return VersionFile(name=plan.name, sha256=plan.sha256, size=size, new=False, tensors=len(plan.tensors))
        with database.reading() as session:
            row = session.get(ArtifactRow, plan.key)
        if row is None or not blobs.has(row.sha256):
            if part_of is not None and (made := self._composed(plan, lineage, part_of)) is not None:
                return VersionFile(
                    name=plan.name, sha256=made.sha256, size=made.size, new=False, tensors=len(plan.tensors)
                )
            entry = blobs.put(plan.name, plan.write)
            row = ArtifactRow(key=plan.key, sha256=entry.sha256, size=entry.size, maker=maker)
            with database.transaction("keep derived file") as session:
                row = session.merge(row)
        new, tensors = row.maker == maker, len(plan.tensors)
        return VersionFile(name=plan.name, sha256=row.sha256, size=row.size, new=new, tensors=tensors)

    def _composed(self, plan: FilePlan, lineage: Lineage, part_of: int) -> ComposedRow | None:
        """The row of a part's file of MLPs, as a header and segments of its version's; None: it is another file."""
        database, blobs = self.ports.database, self.ports.blobs
        with database.reading() as session:
            whole = versions.find_whole(session, part_of)
            known = session.get(ComposedRow, (part_of, plan.key))
        if known is not None and all(blobs.has(segment.sha256) for segment in known.segments):
            return known
        slots = [whole.lineage.experts.index(expert) for expert in lineage.experts]
        own = {expert_name(slot): expert_name(there) for slot, there in enumerate(slots)} | {FUSED_FILE: FUSED_FILE}
        if plan.name not in own or plan.header is None:
            return None
        sha256 = versions.file_digest(whole, own[plan.name])
        file = opened(blobs.source(sha256))
        try:
            fused = slots if plan.name == FUSED_FILE else None
            segments = slot_segments(file, sha256, fused, len(whole.lineage.experts))
        finally:
            file.close()
        row = ComposedRow(part_of=part_of, key=plan.key, header=plan.header(), segments=segments)
        row.size = len(row.header) + sum(segment.size for segment in segments)
        row.sha256 = composed_digest(blobs, row)
        with database.transaction("keep composed file") as session:
            versions.find_whole(session, part_of)  # its blobs go after its retirement, which may have come meanwhile
            return session.merge(row)

    def _solution(self, lineage: Lineage, inputs: VersionInputs) -> Solution:
        layers = len(mlp_layers(inputs.body.config))
        with progress().track(f"solving routers of {', '.join(lineage.domains)}", layers, "layers") as tracker:
            return self._metrics.timed_solve(lambda: solve_lineage(lineage, inputs, lambda layer: tracker.advance(1)))
