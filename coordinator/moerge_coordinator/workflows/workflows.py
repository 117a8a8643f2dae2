"""Long work as durable workflows: cut at any step, they go on there after a restart.

Every step can be repeated: files are named by content, rows are added once.
"""

import shutil
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

from dbos import DBOS, DBOSClient, DBOSConfiguredInstance, EnqueueOptions, SetWorkflowID, WorkflowStatus
from sqlalchemy import Engine, func, select

from moerge.blobs.store import Blobs, show
from moerge.errors import MoergeError
from moerge.files import is_of_full_disk
from moerge.models.config import read_config
from moerge.models.expert_folder import require_finite
from moerge.models.reader import Checkpoint
from moerge.trunk.merge import DENSE_TRUNK_FILE, TrunkInputs, merge_trunk
from moerge.versions.card import Contributed, ExpertRecord
from moerge.versions.files import FilePlan
from moerge.versions.plan import Slot, Solution, VersionInputs, VersionPlan, plan_version, solve_lineage
from moerge_coordinator.domain.intake import checked_family, others, require_held
from moerge_coordinator.domain.lifecycle import remerge, require_told, require_usable
from moerge_coordinator.domain.sources import fetch
from moerge_coordinator.domain.uploads import Uploads
from moerge_coordinator.log import progress
from moerge_coordinator.metrics import Metrics
from moerge_coordinator.problems import failure
from moerge_coordinator.settings import Settings
from moerge_coordinator.storage import messages as views
from moerge_coordinator.storage.database import reading, transaction
from moerge_coordinator.storage.tables import ArtifactRow, ContributionRow, ExpertRow, TrunkRow, VersionRow
from moerge_proto.digests import digest_of
from moerge_proto.experts import ExpertState
from moerge_proto.messages import FileEntry
from moerge_proto.trunks import TrunkLineage
from moerge_proto.versions import Lineage, VersionFile
from moerge_proto.workflows import Workflow, WorkflowEntry, WorkflowState

P = ParamSpec("P")
Outcome = dict[str, Any]
EXECUTOR_ID = "coordinator"
INSTANCE = "coordinator"
QUEUE = "workflows"
_GONE: Outcome = {"result": None}  # what a step needs was removed meanwhile: make it again
APPLICATION_VERSION = "3"  # raise only when a workflow's steps change, and let running ones finish first


def _telling_problems(
    step: Callable[Concatenate["Workflows", P], object],
) -> Callable[Concatenate["Workflows", P], Outcome]:
    """What a step returns: its result, or the problem that its input has. Other errors break the workflow.

    Problems are returned, not raised, because a workflow that goes on after a crash gets them back as they were.
    """

    @wraps(step)
    def told(self: "Workflows", /, *args: P.args, **kwargs: P.kwargs) -> Outcome:
        try:
            with self.blobs.holding():
                return {"result": step(self, *args, **kwargs)}
        except MoergeError as error:
            return {"problem": error.problem().model_dump(mode="json")}
        except OSError as error:
            if not is_of_full_disk(error):
                raise
            return {"problem": failure(error).model_dump(mode="json")}

    return told


@DBOS.dbos_class()
class Workflows(DBOSConfiguredInstance):
    """The three kinds of long work: take in an expert, merge a trunk, publish a version.

    With a `client`, work is queued for whichever process runs the workflows; without, this process runs them.
    """

    def __init__(
        self,
        engine: Engine,
        blobs: Blobs,
        uploads: Uploads,
        settings: Settings,
        metrics: Metrics,
        client: DBOSClient | None = None,
    ) -> None:
        self._engine, self._blobs, self._uploads, self._home = engine, blobs, uploads, settings.home
        self._settings = settings
        self._metrics, self._client = metrics, client
        self._publishing = threading.Lock()
        super().__init__(INSTANCE)

    @property
    def blobs(self) -> Blobs:
        return self._blobs

    def sweep(self) -> None:
        """Removes what a process that was killed left of folders of links. Call it before any is made."""
        with reading(self._engine) as session:
            live = set(map(str, session.scalars(select(VersionRow.number).where(VersionRow.retired.is_(None)))))
        folders = [*(self._home / "experts").glob("*"), *(self._home / "versions").glob("*")]
        for folder in folders:
            if folder.parent.name == "experts" or folder.name not in live:
                shutil.rmtree(folder)

    def expert_folder(self, digest: str) -> Path:
        """The expert's files under the names that its owner gave them, as a folder of links that is made on demand.

        Raises:
            FileNotFoundError: one of them is not kept.
        """
        with reading(self._engine) as session:
            files = session.scalars(select(ExpertRow.files).where(ExpertRow.digest == digest)).one()
        folder = self._home / "experts" / digest
        show(self._blobs, map(FileEntry.model_validate, files), folder)
        return folder

    def reference_folder(self, others: Sequence[str]) -> Path | None:
        """The folder of the expert that all others must be like: the oldest of those with the longest vocabulary."""
        folders = map(self.expert_folder, others)
        return max(folders, key=lambda folder: read_config(folder).vocab_size, default=None)

    def forget_expert_folder(self, digest: str) -> None:
        """Removes the folder of links; the files stay."""
        shutil.rmtree(self._home / "experts" / digest, ignore_errors=True)

    def version_folder(self, number: int) -> Path:
        """A version's files as links, where the blobs' store is lasting; elsewhere a version is pulled."""
        return self._home / "versions" / str(number)

    # --- starting, and asking how it goes

    def start_expert(self, digest: str, trunk: str) -> Workflow:
        return self._start(f"expert-{digest}", self.take_in_expert, digest, trunk)

    def start_trunk(self, lineage: TrunkLineage) -> Workflow:
        content = lineage.model_dump(mode="json")
        return self._start(f"trunk-{digest_of(content)}", self.merge_trunk, content)

    def start_version(self, lineage: Lineage) -> Workflow:
        content = lineage.model_dump(mode="json")
        return self._start(f"version-{digest_of(content)}", self.publish_version, content)

    def start_remerge(self) -> Workflow | None:
        """Merges a trunk in the place of the current one, if that one is retired and something is left to merge."""
        with transaction(self._engine) as session:
            lineage = remerge(session)
        return None if lineage is None else self.start_trunk(lineage)

    def _start(self, name: str, workflow: Callable[..., Outcome], *args: object) -> Workflow:
        """Starts the workflow, or finds it running. One that has ended is started anew: what it made, it finds."""
        attempt = 1
        while (found := self.find(f"{name}-{attempt}")) is not None and found.state is not WorkflowState.RUNNING:
            attempt += 1
        id_ = f"{name}-{attempt}"
        if found is None:
            self._launch(id_, workflow, *args)
        return self.find(id_) or Workflow(id=id_, state=WorkflowState.RUNNING)

    def _launch(self, id_: str, workflow: Callable[..., Outcome], *args: object) -> None:
        if self._client is None:
            with SetWorkflowID(id_):
                DBOS.start_workflow(workflow, *args)
            return
        options = EnqueueOptions(
            workflow_id=id_,
            queue_name=QUEUE,
            workflow_name=workflow.__qualname__,
            class_name=type(self).__qualname__,
            instance_name=INSTANCE,
            app_version=APPLICATION_VERSION,
        )
        self._client.enqueue(options, *args)

    def find(self, id_: str) -> Workflow | None:
        if self._client is None:
            status = DBOS.get_workflow_status(id_)
        else:
            status = next(iter(self._client.list_workflows(workflow_ids=[id_])), None)
        return None if status is None else views.workflow(id_, status.status, status.output, status.error)

    def entries(self, after: int, most: int) -> list[WorkflowEntry]:
        """The `most` newest workflows but for the `after` newest, newest first."""
        return [views.workflow_entry(each) for each in self._list(limit=most, offset=after, sort_desc=True)]

    def retry(self, id_: str) -> Workflow | None:
        """Starts one that failed anew, with what it was given.

        None if there is none, it didn't fail, or it refused an expert, whose files are gone.
        """
        found = next(iter(self._list(workflow_ids=[id_])), None)
        if found is None or found.input is None:
            return None
        given, entry = found.input["args"], views.workflow_entry(found)
        if entry.state is not WorkflowState.FAILED:
            return None
        if entry.kind == "expert":
            with reading(self._engine) as session:
                state = session.scalar(select(ExpertRow.state).where(ExpertRow.digest == given[0]))
            return self.start_expert(*given) if state == ExpertState.RECEIVED.value else None
        if entry.kind == "trunk":
            return self.start_trunk(TrunkLineage.model_validate(*given))
        return self.start_version(Lineage.model_validate(*given))

    def _list(self, **how: Any) -> list[WorkflowStatus]:
        listed = DBOS.list_workflows if self._client is None else self._client.list_workflows
        return listed(**how)

    def count(self) -> Counter[tuple[str, str]]:
        """(kind, state) -> how many workflows there are, ended ones too."""
        found = self._list(load_input=False)
        shown = [(each.name, views.workflow(each.workflow_id, each.status, each.output, each.error)) for each in found]
        return Counter((name.rpartition(".")[2], workflow.state.value) for name, workflow in shown)

    # --- take in an expert

    @DBOS.workflow()
    def take_in_expert(self, digest: str, trunk: str) -> Outcome:
        outcome: Outcome = {}
        for step in (self._fetch, self._check_weights):
            if "problem" in (outcome := step(digest)):
                self._refuse(digest, outcome["problem"])
                return outcome
        if trunk == "remerge" and (lineage := self._with_newcomer(digest)) is not None:
            self.merge_trunk(lineage)
        return outcome

    @DBOS.step()
    @_telling_problems
    def _fetch(self, digest: str) -> None:
        """Fetches the files of an expert with a source, and checks them as those that are uploaded are checked."""
        with reading(self._engine) as session:
            row = session.scalars(select(ExpertRow).where(ExpertRow.digest == digest)).one()
        if row.source is None or row.family:
            return
        entries = [self._fetched(row, file["name"], file["sha256"]) for file in row.files]
        shutil.rmtree(self._home / "fetching" / digest, ignore_errors=True)
        who, vocabulary = f"expert of {row.domain!r}", self._settings.vocabulary
        while True:
            with reading(self._engine) as session:
                before = others(session)
            family = checked_family(
                self._blobs, self._home / "experts", entries, self.reference_folder(before), who, vocabulary
            )
            with transaction(self._engine) as session:
                if others(session) != before:
                    continue
                require_held(session, row.owner, entries)
                row = session.scalars(select(ExpertRow).where(ExpertRow.digest == digest)).one()
                row.family, row.files = family, [entry.model_dump() for entry in entries]
                return

    def _fetched(self, row: ExpertRow, name: str, sha256: str) -> FileEntry:
        size = self._uploads.held_size(row.owner, sha256)
        if size is None:
            part, address = self._home / "fetching" / row.digest / name, f"{row.source}".rstrip("/") + f"/{name}"
            most = self._uploads.room(row.owner)
            with progress().track(f"fetching {name}", 0, "B") as tracker:
                fetch(address, part, most, self._settings.sources, tracker.advance)
            size = part.stat().st_size
            self._uploads.keep(row.owner, FileEntry(name=name, sha256=sha256, size=size), part, address)
        return FileEntry(name=name, sha256=sha256, size=size)

    @DBOS.step()
    @_telling_problems
    def _check_weights(self, digest: str) -> str:
        checkpoint = Checkpoint(self.expert_folder(digest))
        total = sum(spec.bytes for spec in checkpoint.specs.values())
        with progress().track(f"expert {digest[:12]}: checking weights", total, "B") as tracker:
            require_finite(checkpoint, tracker)
        with transaction(self._engine) as session:
            row = session.scalars(select(ExpertRow).where(ExpertRow.digest == digest)).one()
            if row.state == ExpertState.RECEIVED.value:
                row.state = ExpertState.READY.value
        return digest

    @DBOS.step()
    def _with_newcomer(self, digest: str) -> dict[str, Any] | None:
        with transaction(self._engine) as session:
            lineage = remerge(session, digest)
        return None if lineage is None else lineage.model_dump(mode="json")

    @DBOS.step()
    def _refuse(self, digest: str, problem: dict[str, Any]) -> None:
        with transaction(self._engine) as session:
            row = session.scalar(select(ExpertRow).where(ExpertRow.digest == digest))
            if row is None:  # cut after this step's work, it is done again; meanwhile another expert took the place
                return
            row.state, row.problem = ExpertState.REFUSED.value, problem
        self.forget_expert_folder(digest)
        shutil.rmtree(self._home / "fetching" / digest, ignore_errors=True)
        self._uploads.discard(row.owner, [file["sha256"] for file in row.files])

    # --- merge a trunk

    @DBOS.workflow()
    def merge_trunk(self, lineage: dict[str, Any]) -> Outcome:
        while True:
            merged = self._merge(lineage)
            outcome = merged if "problem" in merged else self._record_trunk(merged["result"])
            if outcome != _GONE:
                return outcome

    @DBOS.step()
    @_telling_problems
    def _merge(self, lineage: dict[str, Any]) -> dict[str, Any]:
        with transaction(self._engine) as session:
            for row in session.scalars(select(TrunkRow)):
                here = all(self._blobs.has(file["sha256"]) for file in row.files)
                if here and views.trunk_lineage(row) == lineage:
                    return views.merged_trunk(row).model_dump(mode="json")
            domains = {row.digest: row.domain for row in session.scalars(select(ExpertRow))}
        made = TrunkLineage.model_validate(lineage)
        experts = [*made.experts, *([] if made.options.base is None else [made.options.base])]
        inputs = TrunkInputs(
            folders={digest: self.expert_folder(digest) for digest in experts},
            domains=domains,
            statistics={digest: self._blobs.local(digest) for digest in made.contributions},
        )
        return merge_trunk(made, inputs, self._blobs, progress()).model_dump(mode="json")

    @DBOS.step()
    @_telling_problems
    def _record_trunk(self, trunk: dict[str, Any]) -> str | None:
        with transaction(self._engine) as session:
            require_usable(session, [*trunk["experts"], trunk["options"].get("base")], trunk["contributions"])
            if not all(self._blobs.has(file["sha256"]) for file in trunk["files"]):
                return None
            row = session.scalar(select(TrunkRow).where(TrunkRow.digest == trunk["digest"]))
            if row is None:
                row = TrunkRow(**trunk, current=False)
                session.add(row)
            for other in session.scalars(select(TrunkRow).where(TrunkRow.current)):
                other.current = False
            row.current, row.retired = True, None
        return str(trunk["digest"])

    # --- publish a version

    @DBOS.workflow()
    def publish_version(self, lineage: dict[str, Any]) -> Outcome:
        while True:
            for step in (self._write_weights, self._solve):
                if "problem" in (outcome := step(lineage)):
                    return outcome
            if (outcome := self._publish(lineage)) != _GONE:
                return outcome

    @DBOS.step()
    @_telling_problems
    def _write_weights(self, lineage: dict[str, Any]) -> None:
        made = Lineage.model_validate(lineage)
        with reading(self._engine) as session:
            require_usable(session, made.experts, made.contributions)
        for plan in self._plan(made).shared:
            self._artifact(plan, made)

    @DBOS.step()
    @_telling_problems
    def _solve(self, lineage: dict[str, Any]) -> None:
        made = Lineage.model_validate(lineage)
        layers = read_config(self.expert_folder(made.experts[0])).num_hidden_layers
        with progress().track(f"solving routers of {', '.join(made.domains)}", layers, "layers") as tracker:
            for plan in self._plan(made, lambda layer: tracker.advance(1)).solved:
                self._artifact(plan, made)

    @DBOS.step()
    @_telling_problems
    def _publish(self, lineage: dict[str, Any]) -> str | None:
        made = Lineage.model_validate(lineage)
        name = digest_of(lineage)
        with self._publishing:
            with transaction(self._engine) as session:
                row = session.scalar(select(VersionRow).where(VersionRow.lineage_digest == name))
                if row is not None:
                    return str(row.number)
                number = (session.scalar(select(func.max(VersionRow.number))) or 0) + 1
            files = [self._artifact(plan, made) for plan in self._plan(made).files]
            if self._blobs.lasting:
                self._show_folder(number, files)
            with transaction(self._engine) as session:
                require_usable(session, made.experts, made.contributions)
                require_told(session, made)
                if not all(self._blobs.has(file.sha256) for file in files):
                    return None
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
        shutil.rmtree(target, ignore_errors=True)  # from a run that was cut before its row was written
        show(self._blobs, files, target)

    def _artifact(self, plan: FilePlan, lineage: Lineage) -> VersionFile:
        """The planned file as a blob, written only if no version has written it."""
        maker = digest_of(lineage.model_dump(mode="json"))
        if plan.sha256 is not None and (size := self._blobs.size(plan.sha256)) is not None:
            return VersionFile(name=plan.name, sha256=plan.sha256, size=size, new=False, tensors=len(plan.tensors))
        with transaction(self._engine) as session:
            row = session.get(ArtifactRow, plan.key)
        if row is None or not self._blobs.has(row.sha256):
            entry = self._blobs.put(plan.name, plan.write)
            row = ArtifactRow(key=plan.key, sha256=entry.sha256, size=entry.size, maker=maker)
            with transaction(self._engine) as session:
                row = session.merge(row)
        new, tensors = row.maker == maker, len(plan.tensors)
        return VersionFile(name=plan.name, sha256=row.sha256, size=row.size, new=new, tensors=tensors)

    def _plan(self, lineage: Lineage, solved: Callable[[int], None] = lambda layer: None) -> VersionPlan:
        """The version's files, from the rows and blobs that its lineage names."""
        with reading(self._engine) as session:
            experts = {row.digest: row for row in session.scalars(select(ExpertRow))}
            parts = {row.digest: row for row in session.scalars(select(ContributionRow))}
            trunk = session.scalars(select(TrunkRow).where(TrunkRow.digest == lineage.trunk)).one()
        sha256 = next(file["sha256"] for file in trunk.files if file["name"] == DENSE_TRUNK_FILE)
        inputs = VersionInputs(
            slots=[self._slot(experts[digest]) for digest in lineage.experts],
            trunk=self._blobs.local(sha256),
            trunk_sha256=sha256,
            method=trunk.method,
            merged=[_record(experts[digest]) for digest in views.trunk(trunk).contains],
            config=self.expert_folder(trunk.experts[0]),
            contributed=[_contributed(parts[digest]) for digest in lineage.contributions],
            statistics=lambda: [self._blobs.local(digest) for digest in lineage.contributions],
        )

        def solve(lineage: Lineage, inputs: VersionInputs) -> Solution:
            return self._metrics.timed_solve(lambda: solve_lineage(lineage, inputs, solved))

        return plan_version(lineage, inputs, solve)

    def _slot(self, row: ExpertRow) -> Slot:
        return Slot(_record(row), self.expert_folder(row.digest), self.expert_folder(row.trained))

    def drop_folders(self, experts: Sequence[str], versions: Sequence[int]) -> None:
        """Removes views whose files were let go of."""
        for digest in experts:
            self.forget_expert_folder(digest)
        for number in versions:
            shutil.rmtree(self.version_folder(number), ignore_errors=True)


def _record(row: ExpertRow) -> ExpertRecord:
    return ExpertRecord(row.digest, row.domain, row.owner, row.license, row.fitted_from)


def _contributed(row: ContributionRow) -> Contributed:
    return Contributed(row.digest, row.domain, row.owner, row.tokens, row.documents)
