"""Long work as durable workflows: cut at any step, they go on there after a restart.

Every step can be repeated: files are named by content, rows are added once.
"""

import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

from dbos import DBOS, DBOSConfiguredInstance, SetWorkflowID
from sqlalchemy import Engine, func, select

from moerge.architectures.config import read_config
from moerge.architectures.families import Family, family_of
from moerge.blobs.local import LocalBlobs
from moerge.checkpoint.reader import Checkpoint
from moerge.checkpoint.writer import write_safetensors
from moerge.errors import MoergeError
from moerge.experts import require_finite
from moerge.files import sync_folder
from moerge.progress import progress
from moerge.publish.card import card_file
from moerge.publish.version import (
    FilePlan,
    config_files,
    expert_file,
    index_file,
    router_file,
    text_file,
    trunk_file,
)
from moerge.trunk.merge import merge_plan, trunk_digest
from moerge_coordinator import views
from moerge_coordinator.database import transaction
from moerge_coordinator.tables import ArtifactRow, ContributionRow, ExpertRow, TrunkRow, VersionRow
from moerge_coordinator.uploads import Uploads
from moerge_proto.digests import canonical_json, digest_of
from moerge_proto.experts import ExpertState
from moerge_proto.messages import FileEntry
from moerge_proto.statistics_file import StatisticsFile, exponent
from moerge_proto.versions import Lineage, VersionFile
from moerge_proto.workflows import Workflow, WorkflowState

P = ParamSpec("P")
Outcome = dict[str, Any]
DENSE_TRUNK_FILE = "trunk.safetensors"
EXECUTOR_ID = "coordinator"
_TRUNK_FIELDS = (
    "digest", "method", "experts", "family", "hidden_size", "layers", "exponents", "nonzero_gains", "files",
)  # fmt: skip
APPLICATION_VERSION = "1"  # raise only when a workflow's steps change, and let running ones finish first


def _telling_problems(step: Callable[P, object]) -> Callable[P, Outcome]:
    """What a step returns: its result, or the problem that its input has. Other errors break the workflow.

    Problems are returned, not raised, because a workflow that goes on after a crash gets them back as they were.
    """

    @wraps(step)
    def told(*args: P.args, **kwargs: P.kwargs) -> Outcome:
        try:
            return {"result": step(*args, **kwargs)}
        except MoergeError as error:
            return {"problem": error.problem().model_dump(mode="json")}

    return told


@DBOS.dbos_class()
class Workflows(DBOSConfiguredInstance):
    """The three kinds of long work: take in an expert, merge a trunk, publish a version."""

    def __init__(self, engine: Engine, blobs: LocalBlobs, uploads: Uploads, home: Path) -> None:
        self._engine, self._blobs, self._uploads, self._home = engine, blobs, uploads, home
        self._publishing = threading.Lock()
        super().__init__("coordinator")

    def sweep(self) -> None:
        """Removes the half-made folders of a process that was killed. Call it before any is made."""
        for place in ("experts", "versions"):
            for leftover in (self._home / place).glob(".*"):
                shutil.rmtree(leftover)

    def expert_folder(self, digest: str) -> Path:
        """The expert's files under the names that its owner gave them."""
        return self._home / "experts" / digest

    def version_folder(self, number: int) -> Path:
        return self._home / "versions" / str(number)

    # --- starting, and asking how it goes

    def start_expert(self, digest: str) -> Workflow:
        return self._start(f"expert-{digest}", self.take_in_expert, digest)

    def start_trunk(self, method: str, experts: list[str]) -> Workflow:
        return self._start(f"trunk-{digest_of([method, *experts])}", self.merge_trunk, method, experts)

    def start_version(self, lineage: Lineage) -> Workflow:
        content = lineage.model_dump(mode="json")
        return self._start(f"version-{digest_of(content)}", self.publish_version, content)

    def _start(self, name: str, workflow: Callable[..., Outcome], *args: object) -> Workflow:
        """Starts the workflow, or finds it running. One that has ended is started anew: what it made, it finds."""
        attempt = 1
        while (found := self.find(f"{name}-{attempt}")) is not None and found.state is not WorkflowState.RUNNING:
            attempt += 1
        id_ = f"{name}-{attempt}"
        if found is None:
            with SetWorkflowID(id_):
                DBOS.start_workflow(workflow, *args)
        return self.find(id_) or Workflow(id=id_, state=WorkflowState.RUNNING)

    def find(self, id_: str) -> Workflow | None:
        status = DBOS.get_workflow_status(id_)
        return None if status is None else views.workflow(id_, status.status, status.output, status.error)

    # --- take in an expert

    @DBOS.workflow()
    def take_in_expert(self, digest: str) -> Outcome:
        outcome = self._check_weights(digest)
        if "problem" in outcome:
            self._refuse(digest, outcome["problem"])
        return outcome

    @DBOS.step()
    @_telling_problems
    def _check_weights(self, digest: str) -> str:
        checkpoint = Checkpoint(self.expert_folder(digest))
        total = sum(spec.bytes for spec in checkpoint.specs.values())
        with progress().track(f"expert {digest[:12]}: checking weights", total, "B") as tracker:
            require_finite(checkpoint, tracker)
        with transaction(self._engine) as session:
            session.scalars(select(ExpertRow).where(ExpertRow.digest == digest)).one().state = ExpertState.READY.value
        return digest

    @DBOS.step()
    def _refuse(self, digest: str, problem: dict[str, Any]) -> None:
        with transaction(self._engine) as session:
            row = session.scalars(select(ExpertRow).where(ExpertRow.digest == digest)).one()
        shutil.rmtree(self.expert_folder(digest), ignore_errors=True)
        self._uploads.discard(row.owner, [file["sha256"] for file in row.files], refused=digest)
        with transaction(self._engine) as session:
            row = session.scalars(select(ExpertRow).where(ExpertRow.digest == digest)).one()
            row.state, row.problem = ExpertState.REFUSED.value, problem

    # --- merge a trunk

    @DBOS.workflow()
    def merge_trunk(self, method: str, experts: list[str]) -> Outcome:
        merged = self._merge(method, experts)
        return merged if "problem" in merged else self._record_trunk(merged["result"])

    @DBOS.step()
    @_telling_problems
    def _merge(self, method: str, experts: list[str]) -> dict[str, Any]:
        with transaction(self._engine) as session:
            for row in session.scalars(select(TrunkRow).where(TrunkRow.method == method)):
                if row.experts == experts:
                    return {name: getattr(row, name) for name in _TRUNK_FIELDS}
        folders = [self.expert_folder(digest) for digest in experts]
        config = read_config(folders[0])
        family = family_of(config)
        layers, hidden = config.num_hidden_layers, config.hidden_size
        plans = merge_plan([Checkpoint(folder) for folder in folders], family, layers, method)
        with progress().track(f"merging a trunk of {len(experts)}", sum(plan.bytes for plan in plans), "B") as tracker:
            weights = self._blobs.put(DENSE_TRUNK_FILE, lambda out: write_safetensors(out, plans, tracker.advance))
        settings = (folders[0] / "config.json").read_text(encoding="utf-8")
        files = [weights, self._blobs.put("config.json", text_file("config.json", settings).write)]
        trunk = Checkpoint(self._blobs.path(weights.sha256))
        gains = [trunk.tensor(family.gain.format(layer=layer)) for layer in range(layers)]
        exponents = [exponent(hidden)] * layers
        return {
            "digest": trunk_digest(method, experts, {file.name: file.sha256 for file in files}, exponents),
            "method": method,
            "experts": experts,
            "family": family.model_type,
            "hidden_size": hidden,
            "layers": layers,
            "exponents": exponents,
            "nonzero_gains": [int((gain != 0).sum()) for gain in gains],
            "files": [file.model_dump() for file in files],
        }

    @DBOS.step()
    @_telling_problems
    def _record_trunk(self, trunk: dict[str, Any]) -> str:
        with transaction(self._engine) as session:
            row = session.scalar(select(TrunkRow).where(TrunkRow.digest == trunk["digest"]))
            if row is None:
                row = TrunkRow(**trunk, current=False)
                session.add(row)
            for other in session.scalars(select(TrunkRow).where(TrunkRow.current)):
                other.current = False
            row.current = True
        return str(trunk["digest"])

    # --- publish a version

    @DBOS.workflow()
    def publish_version(self, lineage: dict[str, Any]) -> Outcome:
        for step in (self._write_weights, self._solve):
            if "problem" in (outcome := step(lineage)):
                return outcome
        return self._publish(lineage)

    @DBOS.step()
    @_telling_problems
    def _write_weights(self, lineage: dict[str, Any]) -> None:
        made = Lineage.model_validate(lineage)
        for plan in self._shared_files(made):
            self._artifact(plan, made)

    @DBOS.step()
    @_telling_problems
    def _solve(self, lineage: dict[str, Any]) -> None:
        made = Lineage.model_validate(lineage)
        layers = read_config(self.expert_folder(made.experts[0])).num_hidden_layers
        with (
            progress().track(f"solving routers of {', '.join(made.domains)}", layers, "layers") as tracker,
            self._routers(made, lambda layer: tracker.advance(1)) as plan,
        ):
            self._artifact(plan, made)

    @DBOS.step()
    @_telling_problems
    def _publish(self, lineage: dict[str, Any]) -> str:
        made = Lineage.model_validate(lineage)
        name = digest_of(lineage)
        with self._publishing:
            with transaction(self._engine) as session:
                row = session.scalar(select(VersionRow).where(VersionRow.lineage_digest == name))
                if row is not None:
                    return str(row.number)
                number = (session.scalar(select(func.max(VersionRow.number))) or 0) + 1
            files = [self._artifact(plan, made) for plan in self._all_files(made)]
            self._show_folder(number, files)
            with transaction(self._engine) as session:
                session.add(
                    VersionRow(
                        number=number,
                        lineage_digest=name,
                        lineage=lineage,
                        files=[file.model_dump() for file in files],
                        bytes_total=sum(file.size for file in files),
                        bytes_written=sum(file.size for file in files if file.new),
                    )
                )
            return str(number)

    def _show_folder(self, number: int, files: Sequence[VersionFile]) -> None:
        """The version's folder, as hard links to its blobs; it appears whole."""
        target = self.version_folder(number)
        temporary = target.with_name(f".{number}.tmp")
        for leftover in (temporary, target):  # from a run that was cut before its row was written
            shutil.rmtree(leftover, ignore_errors=True)
        for file in files:
            self._blobs.link(file.sha256, temporary / file.name)
        sync_folder(temporary)
        temporary.replace(target)
        sync_folder(target.parent)

    def _artifact(self, plan: FilePlan, lineage: Lineage) -> VersionFile:
        """The planned file as a blob, written only if no version has written it."""
        maker = digest_of(lineage.model_dump(mode="json"))
        with transaction(self._engine) as session:
            row = session.get(ArtifactRow, plan.key)
        if row is None:
            entry = self._blobs.put(plan.name, plan.write)
            row = ArtifactRow(key=plan.key, sha256=entry.sha256, size=entry.size, maker=maker)
            with transaction(self._engine) as session:
                row = session.merge(row)
            if not self._blobs.has(row.sha256):  # a refused upload of the same content was removed meanwhile
                self._blobs.put(plan.name, plan.write)
        return VersionFile(name=plan.name, sha256=row.sha256, size=row.size, new=row.maker == maker)

    def _shared_files(self, lineage: Lineage) -> list[FilePlan]:
        family, trunk = self._trunk(lineage.trunk)
        plans = [trunk_file(trunk, lineage.trunk)]
        for slot, digest in enumerate(lineage.experts):
            folder = self.expert_folder(digest)
            layers = read_config(folder).num_hidden_layers
            plans.append(expert_file(Checkpoint(folder), family, layers, slot, digest))
        return plans

    @contextmanager
    def _routers(self, lineage: Lineage, solved: Callable[[int], None]) -> Iterator[FilePlan]:
        """The plan of the routers file; it can be written while the context is open."""
        family, trunk = self._trunk(lineage.trunk)
        with ExitStack() as stack:
            files = [stack.enter_context(StatisticsFile(self._blobs.path(digest))) for digest in lineage.contributions]
            name = digest_of(lineage.model_dump(mode="json"))
            yield router_file(files, lineage.domains, trunk, family, lineage.options, name, solved)

    def _all_files(self, lineage: Lineage) -> list[FilePlan]:
        family, trunk = self._trunk(lineage.trunk)
        with self._routers(lineage, lambda layer: None) as routers:
            weights = [*self._shared_files(lineage), routers]
        first = self.expert_folder(lineage.experts[0])
        dtype = next(iter(trunk.specs.values())).dtype
        texts = config_files(first, read_config(first), family, len(lineage.experts), lineage.options.top_k, dtype)
        texts.append(text_file("moerge.json", canonical_json(lineage.model_dump(mode="json")).decode() + "\n"))
        return [*weights, index_file(weights), *texts, self._card(lineage)]

    def _card(self, lineage: Lineage) -> FilePlan:
        with transaction(self._engine) as session:
            experts = {row.digest: views.expert(row) for row in session.scalars(select(ExpertRow))}
            parts = {row.digest: views.contribution(row) for row in session.scalars(select(ContributionRow))}
            merged = session.scalars(select(TrunkRow).where(TrunkRow.digest == lineage.trunk)).one().experts
        return card_file(
            lineage,
            [experts[digest] for digest in lineage.experts],
            [experts[digest] for digest in merged],
            [parts[digest] for digest in lineage.contributions],
        )

    def _trunk(self, digest: str) -> tuple[Family, Checkpoint]:
        with transaction(self._engine) as session:
            row = session.scalars(select(TrunkRow).where(TrunkRow.digest == digest)).one()
        files = {entry.name: entry for entry in (FileEntry.model_validate(file) for file in row.files)}
        folder = self.expert_folder(row.experts[0])
        return family_of(read_config(folder)), Checkpoint(self._blobs.path(files[DENSE_TRUNK_FILE].sha256))
