"""Actions on trunks: merge, remerge."""

from moerge.errors import CoordinatorError
from moerge.trunk.methods.registry import METHODS
from moerge_coordinator.dashboard.forms import Action, Field, Form, Given, invalid, said
from moerge_coordinator.dashboard.site import HOME, Visit
from moerge_proto.history import Remerge
from moerge_proto.options import PAPER, RECOMMENDED
from moerge_proto.problems import Problem, ProblemType
from moerge_proto.trunks import NewTrunk

_ANEW = "Router contributions don't carry over: every worker contributes again under the new trunk."


def _ask_merge(visit: Visit) -> Form:
    facts = "The trunk is merged from every ready expert, and becomes the current one.", _ANEW
    methods = ((item.name, f"{item.name}: {item.about}") for item in METHODS.values() if not item.needs)
    hint = f"recommended: {RECOMMENDED.method}, if every owner has sent a trunk contribution; else {PAPER.method}"
    method = Field("method", "Method", options=(("", "recommended"), *methods), hint=hint)
    return Form("Merge a trunk", "Merge", f"{HOME}/trunks", facts, (method,))


def _merge(visit: Visit, given: Given) -> str:
    try:
        new = NewTrunk.model_validate({"method": given.get("method") or None})
    except ValueError as error:
        raise invalid("method", "choose one of the list") from error
    visit.rest.merge_trunk(new)
    return said("/workflows", "started")


def _of_trunk(visit: Visit) -> Remerge:
    remerge = visit.rest.trunk_history(visit.path["digest"]).remerge
    if remerge is None:
        what = "the trunk was merged from every expert of its newest version"
        raise CoordinatorError(Problem.of(ProblemType.NOT_FOUND, what, todo="merge a trunk of other experts"))
    return remerge


def _ask_remerge(visit: Visit) -> Form:
    result = _of_trunk(visit)
    if result.expected is None:
        missing = ", ".join(result.missing) or "any domain whose expert is in the trunk"
        gain = f"The expected gain is unknown. Not evaluated: {missing}."
    else:
        gain = (
            f"Expected gain: {result.expected:+.1f} points of the normalised average. An estimate: the oracle has"
            f" {result.members_oracle:.1f} on domains whose experts are in the trunk, which are expected to lose"
            f" {result.fall:.1f}, and {result.newcomers_oracle:.1f} on newcomers."
        )
    change = f"The new trunk includes {', '.join(result.newcomers)}, by the same method. It becomes the current one."
    return Form("Remerge the trunk", "Merge", f"{HOME}/trunks", (change, gain, _ANEW))


def _remerge(visit: Visit, given: Given) -> str:
    visit.rest.merge_trunk(_of_trunk(visit).merge)
    return said("/workflows", "started")


ACTIONS = {
    "/trunks/new": Action(_ask_merge, _merge),
    "/trunks/{digest}/remerge": Action(_ask_remerge, _remerge),
}
