"""Matters that need an operator's attention, from the present state in REST."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from moerge_proto.bodies import Body
from moerge_proto.experts import Expert, ExpertState
from moerge_proto.problems import ProblemType
from moerge_proto.progress import DomainProgress
from moerge_proto.versions import Version
from moerge_proto.workflows import WorkflowEntry, WorkflowState

_OURS = [kind.urn for kind in (ProblemType.INTERNAL, ProblemType.UNAVAILABLE, ProblemType.STORAGE_FULL)]
_WORK = {
    "expert": "Taking in an expert",
    "contribution": "Taking in a contribution",
    "version": "Solving a version",
}


@dataclass(frozen=True)
class Need:
    """A need: the matter, the remedy, and its page."""

    what: str
    todo: str
    place: str


def needs(
    champion: Version | None,
    versions: Sequence[Version],
    body: Body | None,
    experts: Sequence[Expert],
    workflows: Sequence[WorkflowEntry],
    workers: Sequence[DomainProgress] = (),
    of_sides: Sequence[Need] = (),
) -> list[Need]:
    """The needs, most urgent first, without those resolved by a later workflow or version.

    `versions` and `workflows` are the newest ones, newest first; `workers` have reported progress; `of_sides` are the
    needs that side rooms add.
    """
    result: list[Need] = []
    newest = next(iter(versions), None)
    if champion is not None and champion.contains_withdrawn:
        result.append(_withdrawn(champion, versions, {expert.digest: expert.domain for expert in experts}))
    result += of_sides
    for workflow in _failed(workflows):
        why = workflow.problem.detail if workflow.problem else "it was interrupted"
        result.append(Need(f"{_WORK[workflow.kind]} failed: {why}", "see the workflow", "/workflows"))
    for worker in workers:
        if worker.obstacle is not None:
            result.append(Need(f"Worker of {worker.domain}: {worker.obstacle.words}", "ask its owner", "/owners"))
    return result + _late(newest, body, experts)


def _withdrawn(champion: Version, versions: Sequence[Version], domains: Mapping[str, str]) -> Need:
    """The way to a champion without withdrawn experts: promote a newer version, or solve one."""
    gone = ", ".join(dict.fromkeys(domains.get(digest, digest[:10]) for digest in champion.contains_withdrawn))
    what = f"The champion contains withdrawn experts: {gone}"
    for version in versions:
        if version.number > champion.number and not (version.contains_withdrawn or version.retired or version.withheld):
            return Need(what, f"promote version {version.number}", f"/versions/{version.number}/promote")
    return Need(what, "solve a version without them", "/solve")


def _late(newest: Version | None, body: Body | None, experts: Sequence[Expert]) -> list[Need]:
    """The domains of ready experts that the newest version lacks."""
    if newest is None:
        return []
    there = set(newest.lineage.experts)
    late = dict.fromkeys(expert.domain for expert in usable(experts, body) if expert.digest not in there)
    what = f"The newest version has no expert for {', '.join(late)}"
    return [Need(what, "solve again once they have contributed", "/solve")] if late else []


def usable(experts: Sequence[Expert], body: Body | None) -> list[Expert]:
    """The ready experts that a version of `body` can have."""
    ready = [expert for expert in experts if expert.state is ExpertState.READY]
    return [item for item in ready if body is not None and item.parts.body == body.digest]


def _failed(workflows: Sequence[WorkflowEntry]) -> list[WorkflowEntry]:
    """The failed ones without a later success: a retry, or for versions, any."""
    newest: dict[str, WorkflowEntry] = {}
    for workflow in workflows:
        newest.setdefault(workflow.id.rpartition("-")[0], workflow)  # retries differ in their last number
    done = [item for item in workflows if item.state is WorkflowState.DONE and item.kind == "version"]
    return [
        item
        for item in newest.values()
        if item.state is WorkflowState.FAILED
        and not is_refusal(item)
        and not any(other.kind == item.kind and other.created > item.created for other in done)
    ]


def is_refusal(workflow: WorkflowEntry) -> bool:
    """Tell whether a workflow refused an expert or a contribution, which its owner must correct."""
    files = workflow.kind in ("expert", "contribution")
    return files and workflow.problem is not None and workflow.problem.type not in _OURS
