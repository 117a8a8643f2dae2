"""Workflows started, found, retried and counted."""

import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal

from dbos import DBOS, DBOSClient, EnqueueOptions, SetWorkflowID, WorkflowStatus
from sqlalchemy import select

from moerge.errors import CoordinatorError
from moerge_coordinator.domain import trunks
from moerge_coordinator.domain.ports import Ports
from moerge_coordinator.metrics import Metrics
from moerge_coordinator.storage.tables import ExpertRow
from moerge_coordinator.workflows.merge_trunk import MergeTrunk
from moerge_coordinator.workflows.publish_version import PublishVersion
from moerge_coordinator.workflows.steps import INSTANCE, Outcome
from moerge_coordinator.workflows.take_in_contribution import TakeInContribution
from moerge_coordinator.workflows.take_in_expert import TakeInExpert
from moerge_proto.contributions import NewContribution
from moerge_proto.digests import digest_of
from moerge_proto.experts import ExpertState
from moerge_proto.problems import Problem, ProblemType
from moerge_proto.trunks import TrunkLineage
from moerge_proto.versions import Lineage
from moerge_proto.workflows import Workflow, WorkflowEntry, WorkflowState

EXECUTOR_ID = "coordinator"
QUEUE = "workflows"
APPLICATION_VERSION = "4"  # raise it when a workflow's steps change: `resume` then starts those that ran anew
_LONGEST_PAUSE = 0.25
_KINDS: dict[str, Literal["expert", "contribution", "trunk", "version"]] = {
    "take_in_expert": "expert",
    "take_in_contribution": "contribution",
    "merge_trunk": "trunk",
    "publish_version": "version",
}


class Workflows:
    """The four kinds of long work: take in an expert or a contribution, merge a trunk, publish a version.

    With a `client`, work is queued for whichever process runs the workflows; without, this process runs them.
    """

    def __init__(self, ports: Ports, metrics: Metrics, client: DBOSClient | None = None) -> None:
        self._ports, self._client = ports, client
        self._trunks = MergeTrunk(ports)
        self._experts = TakeInExpert(ports, self._trunks)
        self._contributions = TakeInContribution(ports)
        self._versions = PublishVersion(ports, metrics)

    # --- started

    def start_expert(self, digest: str, trunk: str) -> Workflow:
        return self._start(f"expert-{digest}", self._experts.take_in_expert, digest, trunk)

    def start_contribution(self, owner: str, new: NewContribution) -> Workflow:
        content = new.model_dump(mode="json")
        name = f"contribution-{digest_of({'owner': owner, **content})}"
        return self._start(name, self._contributions.take_in_contribution, owner, content)

    def start_trunk(self, lineage: TrunkLineage) -> Workflow:
        content = lineage.model_dump(mode="json")
        return self._start(f"trunk-{digest_of(content)}", self._trunks.merge_trunk, content)

    def start_version(self, lineage: Lineage) -> Workflow:
        content = lineage.model_dump(mode="json")
        return self._start(f"version-{digest_of(content)}", self._versions.publish_version, content)

    def start_remerge(self) -> Workflow | None:
        """Merges a trunk in the place of the current one, if that one is retired and something is left to merge."""
        with self._ports.database.reading() as session:
            lineage = trunks.remerge(session)
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
            class_name=workflow.__qualname__.partition(".")[0],
            instance_name=INSTANCE,
            app_version=APPLICATION_VERSION,
        )
        self._client.enqueue(options, *args)

    # --- asked how they go

    def find(self, id_: str) -> Workflow | None:
        if self._client is None:
            status = DBOS.get_workflow_status(id_)
        else:
            status = next(iter(self._client.list_workflows(workflow_ids=[id_])), None)
        return None if status is None else _workflow(status)

    def find_own(self, id_: str, owner: str) -> Workflow | None:
        """The workflow, if it takes in a contribution of this owner."""
        found = next(iter(self._list(workflow_ids=[id_])), None)
        if found is None or found.input is None or _kind(found) != "contribution" or found.input["args"][0] != owner:
            return None
        return _workflow(found)

    def wait(self, workflow: Workflow) -> str:
        """The result of a workflow, once it is done.

        Raises:
            CoordinatorError: it failed; carries its problem.
        """
        pause = 0.01
        while workflow.state is WorkflowState.RUNNING:
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            workflow = self.find(workflow.id) or workflow
        if workflow.problem is not None:
            raise CoordinatorError(workflow.problem)
        return str(workflow.result)

    def entries(self, after: int, most: int) -> list[WorkflowEntry]:
        """The `most` newest workflows but for the `after` newest, newest first."""
        return [_entry(each) for each in self._list(limit=most, offset=after, sort_desc=True)]

    def retry(self, id_: str) -> Workflow | None:
        """Starts one that failed anew, with its input.

        None if there is none, it didn't fail, or it refused an expert or a contribution, whose files are gone.
        """
        found = next(iter(self._list(workflow_ids=[id_])), None)
        if found is None or found.input is None or _workflow(found).state is not WorkflowState.FAILED:
            return None
        given = found.input["args"]
        match _kind(found):
            case "expert":
                with self._ports.database.reading() as session:
                    state = session.scalar(select(ExpertRow.state).where(ExpertRow.digest == given[0]))
                return self.start_expert(*given) if state is ExpertState.RECEIVED else None
            case "contribution":
                new = NewContribution.model_validate(given[1])
                held = self._ports.uploads.held_size(given[0], new.sha256) is not None
                return self.start_contribution(given[0], new) if held else None
            case "trunk":
                return self.start_trunk(TrunkLineage.model_validate(*given))
            case "version":
                return self.start_version(Lineage.model_validate(*given))

    def resume(self) -> None:
        """Goes on with what a stop left: a remerge that is due, and workflows of an earlier build, which start anew.

        Call it in the process that runs the workflows, once they are launched.
        """
        for each in self._list(status=["PENDING", "ENQUEUED", "DELAYED"]):
            if each.app_version != APPLICATION_VERSION:
                DBOS.cancel_workflow(each.workflow_id)
                self.retry(each.workflow_id)
        self.start_remerge()

    def count(self) -> Counter[tuple[str, str]]:
        """(kind, state) -> how many workflows there are, ended ones too."""
        found = self._list(load_input=False)
        return Counter((each.name.rpartition(".")[2], _workflow(each).state.value) for each in found)

    def _list(self, **how: Any) -> list[WorkflowStatus]:
        listed = DBOS.list_workflows if self._client is None else self._client.list_workflows
        return listed(**how)


def _kind(status: WorkflowStatus) -> Literal["expert", "contribution", "trunk", "version"]:
    return _KINDS[status.name.rpartition(".")[2]]


def _workflow(status: WorkflowStatus) -> Workflow:
    """DBOS's status as a message."""
    id_ = status.workflow_id
    output: Any = status.output
    if status.status == "SUCCESS":
        if "problem" in output:
            return Workflow(id=id_, state=WorkflowState.FAILED, problem=Problem.model_validate(output["problem"]))
        return Workflow(id=id_, state=WorkflowState.DONE, result=output["result"])
    if status.status in ("PENDING", "ENQUEUED", "DELAYED"):
        return Workflow(id=id_, state=WorkflowState.RUNNING)
    todo = "mend the cause, which the coordinator's log has, and ask again"
    problem = Problem.of(ProblemType.INTERNAL, f"the work broke off: {status.error or status.status}", todo=todo)
    return Workflow(id=id_, state=WorkflowState.FAILED, problem=problem)


def _entry(status: WorkflowStatus) -> WorkflowEntry:
    """DBOS's status as a line of a list."""
    created, updated = (
        datetime.fromtimestamp((stamp or 0) / 1000, UTC) for stamp in (status.created_at, status.updated_at)
    )
    shown = _workflow(status).model_dump()
    return WorkflowEntry.model_validate({**shown, "kind": _kind(status), "created": created, "updated": updated})
