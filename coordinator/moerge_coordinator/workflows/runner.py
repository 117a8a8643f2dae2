"""Start, state, retry and count of workflows."""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from dbos import DBOS, DBOSClient, EnqueueOptions, SetWorkflowID, WorkflowStatus
from pydantic import ValidationError
from sqlalchemy import select

from moerge_coordinator.domain import contributions, experts
from moerge_coordinator.domain.ports import Ports
from moerge_coordinator.metrics import Metrics
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.storage.tables import ExpertRow
from moerge_coordinator.workflows.publish_version import PublishVersion
from moerge_coordinator.workflows.steps import INSTANCE, Outcome
from moerge_coordinator.workflows.take_in_contribution import TakeInContribution
from moerge_coordinator.workflows.take_in_expert import TakeInExpert
from moerge_proto.contributions import NewContribution
from moerge_proto.digests import digest_of
from moerge_proto.experts import ExpertState
from moerge_proto.problems import Problem, ProblemType
from moerge_proto.versions import Lineage
from moerge_proto.workflows import Workflow, WorkflowEntry, WorkflowKind, WorkflowState

EXECUTOR_ID = "coordinator"
QUEUE = "workflows"
APPLICATION_VERSION = "6"  # raise it when a workflow's steps change: `resume` then restarts running ones
KEPT = 32
"""Ended contribution workflows of an owner that are kept. Those of refused contributions are in no quota."""
_RUNNING = ("PENDING", "ENQUEUED", "DELAYED")
_log = logging.getLogger("moerge.workflows")
_NAMES: dict[WorkflowKind, str] = {
    "expert": TakeInExpert.take_in_expert.__qualname__,
    "contribution": TakeInContribution.take_in_contribution.__qualname__,
    "version": PublishVersion.publish_version.__qualname__,
}
_KINDS = {name: kind for kind, name in _NAMES.items()}


class Workflows:
    """The kinds of workflows: accept an expert or a contribution, publish a version.

    A `client` queues workflows for the process that runs them; without one, this process runs them.
    """

    def __init__(self, ports: Ports, metrics: Metrics, client: DBOSClient | None = None) -> None:
        self._ports, self._client = ports, client
        self._experts = TakeInExpert(ports)
        self._contributions = TakeInContribution(ports)
        self._versions = PublishVersion(ports, metrics)
        self._submitting = threading.Lock()

    # --- start

    def start_expert(self, digest: str) -> Workflow:
        """Accepts or refuses an expert. After a refusal, a new registration doesn't wait for the old workflow's end."""
        with self._ports.database.reading() as session:
            created = experts.find(session, digest).created
        name = f"expert-{digest}-{created:%Y%m%d%H%M%S%f}"
        return self._start(name, self._experts.take_in_expert, digest)

    def submit_contribution(self, owner: str, new: NewContribution) -> Workflow:
        """As `start_contribution`, one check of an owner at a time; removes its oldest ended workflows."""
        name = _contribution_name(owner, new.sha256)
        with self._submitting:
            found = self._list(
                workflow_id_prefix=_contribution_name(owner), sort_desc=True, load_input=False, load_output=False
            )
            running = [item.workflow_id for item in found if item.status in _RUNNING]
            if any(not id_.startswith(name) for id_ in running):
                todo = "wait for its end: the client tries again by itself"
                raise RefusedError(ProblemType.TOO_FAST, f"{running[0]} still runs", todo=todo, retry_after=1)
            ended = [item.workflow_id for item in found if item.status not in _RUNNING]
            self._remove(ended[KEPT:])
            return self.start_contribution(owner, new, found)

    def start_contribution(
        self, owner: str, new: NewContribution, known: Iterable[WorkflowStatus] | None = None
    ) -> Workflow:
        """Accepts a contribution, unless already active. Concurrent calls for a file share one check.

        `known`: the owner's contribution workflows, if they were just listed.
        """
        name = _contribution_name(owner, new.sha256)
        with self._ports.database.reading() as session:
            counts = contributions.find(session, owner, new.sha256) is not None
        if counts:
            return Workflow(id=f"{name}-1", state=WorkflowState.DONE, result=new.sha256)
        content = new.model_dump(mode="json")
        return self._start(name, self._contributions.take_in_contribution, owner, content, known=known)

    def start_version(self, lineage: Lineage, *, accept_loss: bool = False, part_of: int | None = None) -> Workflow:
        """Publishes a version, or a part of one. `accept_loss` doesn't join a running workflow without it."""
        content = lineage.model_dump(mode="json")
        further = {"accept_loss": True} if accept_loss else {} if part_of is None else {"part_of": part_of}
        name = f"version-{digest_of(further | content)}"
        return self._start(name, self._versions.publish_version, content, accept_loss, part_of)

    def _start(
        self,
        name: str,
        workflow: Callable[..., Outcome],
        *args: object,
        known: Iterable[WorkflowStatus] | None = None,
    ) -> Workflow:
        """Starts the workflow NAME-1, NAME-2, …, or finds it running. An ended one restarts and reuses its results."""
        last = 0
        for item in self._list(workflow_id_prefix=f"{name}-", load_input=False) if known is None else known:
            if (number := item.workflow_id.removeprefix(f"{name}-")).isdecimal():  # otherwise a child, or another name
                if item.status in _RUNNING:
                    return _workflow(item)
                last = max(last, int(number))
        id_ = f"{name}-{last + 1}"
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
            class_name=workflow.__qualname__.partition(".")[0],
            instance_name=INSTANCE,
            app_version=APPLICATION_VERSION,
        )
        self._client.enqueue(options, *args)

    # --- state

    def find(self, id_: str, owner: str | None = None) -> Workflow | None:
        """The workflow; for an owner, only if it accepts a contribution of this owner."""
        result = next(iter(self._list(workflow_ids=[id_])), None)
        if result is None:
            return None
        if owner is None:
            return _workflow(result)
        if not isinstance(result.input, dict) or _KINDS[result.name] != "contribution":
            return None
        return None if result.input["args"][0] != owner else _workflow(result)

    def find_part(self, id_: str) -> Workflow | None:
        """The workflow, if it publishes a part of a version."""
        result = next(iter(self._list(workflow_ids=[id_])), None)
        if result is None or not isinstance(result.input, dict) or _KINDS[result.name] != "version":
            return None
        return None if result.input["args"][2] is None else _workflow(result)

    def entries(self, after: int, most: int, kind: WorkflowKind | None = None) -> list[WorkflowEntry]:
        """At most `most` workflows of a kind, or of all, newest first, without the `after` newest."""
        names = None if kind is None else _NAMES[kind]
        result = self._list(limit=most, offset=after, sort_desc=True, name=names, load_input=False)
        return [_entry(item) for item in result]

    def retry(self, id_: str) -> Workflow | None:
        """Restarts a failed workflow with its input.

        None if there is none, it didn't fail, or it refused an expert or a contribution and removed its files.
        """
        result = next(iter(self._list(workflow_ids=[id_])), None)
        if result is None or not isinstance(result.input, dict) or _workflow(result).state is not WorkflowState.FAILED:
            return None
        given = result.input["args"]
        match _KINDS[result.name]:
            case "expert":
                with self._ports.database.reading() as session:
                    state = session.scalar(select(ExpertRow.state).where(ExpertRow.digest == given[0]))
                return self.start_expert(*given) if state is ExpertState.RECEIVED else None
            case "contribution":
                new = NewContribution.model_validate(given[1])
                held = self._ports.uploads.held_size(given[0], new.sha256) is not None
                return self.start_contribution(given[0], new) if held else None
            case "version":
                return self.start_version(Lineage.model_validate(given[0]), accept_loss=given[1], part_of=given[2])

    def resume(self) -> None:
        """Restarts workflows of an earlier build.

        Call it in the process that runs the workflows, after their launch.
        """
        for item in self._list(status=list(_RUNNING)):
            if item.app_version != APPLICATION_VERSION:
                DBOS.cancel_workflow(item.workflow_id)
                try:
                    self.retry(item.workflow_id)
                except ValidationError:
                    _log.exception("%s can't be restarted: this build doesn't understand its input", item.workflow_id)

    def count(self) -> Counter[tuple[str, ...]]:
        """(kind, state) -> number of workflows. A repeated one counts with its newest attempt only."""
        newest = {item.workflow_id.rpartition("-")[0]: item for item in self._list(load_input=False)}
        return Counter((item.name.rpartition(".")[2], _workflow(item).state.value) for item in newest.values())

    def forget_ended(self) -> None:
        """Removes workflows that ended before the settings' `abandoned_after_hours`."""
        before = self._ports.database.clock() - timedelta(hours=self._ports.settings.abandoned_after_hours)
        ended = self._list(completed_before=before.isoformat(), load_input=False, load_output=False)
        self._remove([item.workflow_id for item in ended])

    def close(self) -> None:
        """Closes the connection to the process that runs the workflows."""
        if self._client is not None:
            self._client.destroy()

    def _remove(self, ids: list[str]) -> None:
        if ids:
            (DBOS.delete_workflows if self._client is None else self._client.delete_workflows)(ids)

    def _list(self, **how: Any) -> list[WorkflowStatus]:
        listed = DBOS.list_workflows if self._client is None else self._client.list_workflows
        return listed(**how)


def _contribution_name(owner: str, sha256: str = "") -> str:
    """The beginning of the workflows' ids for an owner, or for one of its files."""
    return f"contribution-{digest_of({'owner': owner})[:16]}-{sha256}"


def _workflow(status: WorkflowStatus) -> Workflow:
    """DBOS's status as a message."""
    id_ = status.workflow_id
    output: Any = status.output
    if status.status == "SUCCESS" and isinstance(output, dict):
        if "problem" in output:
            return Workflow(id=id_, state=WorkflowState.FAILED, problem=Problem.model_validate(output["problem"]))
        return Workflow(id=id_, state=WorkflowState.DONE, result=output["result"])
    if status.status in _RUNNING:
        return Workflow(id=id_, state=WorkflowState.RUNNING)
    if status.status == "CANCELLED":
        problem = Problem.of(ProblemType.UNAVAILABLE, "an upgrade of the coordinator interrupted it", todo="try again")
    else:
        todo = "remove the cause (see the coordinator's log), and try again"
        problem = Problem.of(ProblemType.INTERNAL, f"the workflow failed: {status.error or status.status}", todo=todo)
    return Workflow(id=id_, state=WorkflowState.FAILED, problem=problem)


def _entry(status: WorkflowStatus) -> WorkflowEntry:
    """DBOS's status as a line of a list."""
    stamps = {"created": status.created_at, "updated": status.updated_at}
    times = {name: datetime.fromtimestamp((stamp or 0) / 1000, UTC) for name, stamp in stamps.items()}
    return WorkflowEntry.model_validate({**_workflow(status).model_dump(), "kind": _KINDS[status.name], **times})
