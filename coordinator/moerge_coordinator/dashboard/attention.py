"""Needs of an operator's attention, from the present state in REST."""

from collections.abc import Sequence
from dataclasses import dataclass

from moerge_proto.experts import Expert, ExpertState
from moerge_proto.history import Remerge
from moerge_proto.influence import VersionInfluence
from moerge_proto.problems import ProblemType
from moerge_proto.progress import DomainProgress
from moerge_proto.rounds import Round, RoundState
from moerge_proto.trunks import Trunk
from moerge_proto.versions import Version
from moerge_proto.workflows import WorkflowEntry, WorkflowState

_OURS = [kind.urn for kind in (ProblemType.INTERNAL, ProblemType.UNAVAILABLE, ProblemType.STORAGE_FULL)]

_MOST_WARNINGS = 5


@dataclass(frozen=True)
class Need:
    """A need: the matter, the remedy, and its page."""

    what: str
    todo: str
    place: str


def needs(
    champion: Version | None,
    newest: Version | None,
    trunk: Trunk | None,
    experts: Sequence[Expert],
    rounds: Sequence[Round],
    workflows: Sequence[WorkflowEntry],
    remerge: Remerge | None = None,
    workers: Sequence[DomainProgress] = (),
    influence: VersionInfluence | None = None,
) -> list[Need]:
    """The most urgent first. `workflows` are the newest ones; one that failed but was started again needs nothing.

    `remerge` is the current trunk's; `workers` are those that tell; `influence` is of the newest version, as long as it
    isn't the champion.
    """
    found: list[Need] = []
    domains = {expert.digest: expert.domain for expert in experts}
    if champion is not None and champion.contains_withdrawn:
        gone = ", ".join(domains.get(digest, digest[:10]) for digest in champion.contains_withdrawn)
        found.append(
            Need(f"The champion still contains what was withdrawn: {gone}", "promote a newer one", "/versions")
        )
    if trunk is not None and trunk.retired is not None:
        found.append(Need("The current trunk is retired", "merge a new one", "/trunks"))
    if newest is not None and influence is not None:
        place = f"/versions/{newest.number}#influence"
        found += [
            Need(f"Version {newest.number}: {warning}", "look before you promote it", place)
            for warning in influence.warnings[:_MOST_WARNINGS]
        ]
    for workflow in _failed(workflows):
        why = workflow.problem.detail if workflow.problem else "it broke off"
        found.append(Need(f"Work on {_article(workflow.kind)} failed: {why}", "see why, and retry", "/workflows"))
    for asked in rounds:
        if asked.state is RoundState.SHORT:
            what = f"Round {asked.name} ended short: {', '.join(asked.missing)} did not contribute"
            found.append(Need(what, "move the deadline, or lower the minimum", "/owners"))
    for worker in workers:
        if worker.obstacle is not None:
            found.append(Need(f"Worker of {worker.domain}: {worker.obstacle.words}", "ask its owner", "/owners"))
    ready = [expert for expert in experts if expert.state is ExpertState.READY and expert.fitted is None]
    trained = {expert.digest: expert.trained for expert in experts}
    if newest is None:
        if trunk is None and ready:
            found.append(Need("There are experts, but no trunk", "merge one", "/trunks/new"))
        elif trunk is not None:
            found.append(Need("There is a trunk, but no version", "solve one once owners have contributed", "/solve"))
    elif champion is None:
        found.append(Need("No version is the champion", "promote one", f"/versions/{newest.number}/promote"))
    there = {trained.get(digest, digest) for digest in newest.lineage.experts} if newest is not None else set()
    if newest is not None and (late := [each for each in ready if each.digest not in there]):
        names = ", ".join(each.domain for each in late)
        found.append(Need(f"Not in the newest version: {names}", "solve again once they have contributed", "/solve"))
    if remerge is not None and remerge.recommended:
        what = (
            f"The trunk lacks {', '.join(remerge.newcomers)}: expected of a remerge are {remerge.expected:+.1f} points"
        )
        found.append(Need(what, "merge it anew", f"/trunks/{remerge.trunk}/remerge"))
    return found


def _failed(workflows: Sequence[WorkflowEntry]) -> list[WorkflowEntry]:
    """The failed ones; of those with one name, which differ in their last number, only the newest counts."""
    newest: dict[str, WorkflowEntry] = {}
    for workflow in workflows:
        newest.setdefault(workflow.id.rpartition("-")[0], workflow)
    failed = [each for each in newest.values() if each.state is WorkflowState.FAILED]
    return [each for each in failed if not is_refusal(each)]


def is_refusal(workflow: WorkflowEntry) -> bool:
    """Whether a workflow refused an expert or a contribution, which is its owner's to mend."""
    files = workflow.kind in ("expert", "contribution")
    return files and workflow.problem is not None and workflow.problem.type not in _OURS


def _article(kind: str) -> str:
    return f"an {kind}" if kind == "expert" else f"a {kind}"
