"""Actions on bodies: merge, remerge."""

from moerge.errors import CoordinatorError
from moerge.trunk.methods.registry import METHODS
from moerge_coordinator.dashboard.forms import Action, Field, Form, Given, invalid, said
from moerge_coordinator.dashboard.site import HOME, Visit
from moerge_proto.bodies import NewBody
from moerge_proto.history import Remerge
from moerge_proto.options import PAPER, RECOMMENDED
from moerge_proto.problems import Problem, ProblemType

_ANEW = "Router contributions don't carry over: every worker contributes again under the new body."
_POLICY = 'Workers refuse a merged body unless their owners\' policies have "merged" in bodies.'


def _ask_merge(visit: Visit) -> Form:
    seeded = any(body.method == "seed" for body in visit.rest.bodies())
    facts = ["The body is merged from every ready expert, and becomes the current one.", _ANEW, _POLICY]
    if seeded:
        facts.append("The method seed takes the seed's body, without experts.")
    usable = [item for item in METHODS.values() if not item.needs and (seeded or not item.is_seed)]
    methods = [(item.name, f"{item.name}: {item.about}") for item in usable]
    hint = f"recommended: {RECOMMENDED.body}, if every owner has sent a body contribution; else {PAPER.body}"
    method = Field("method", "Method", options=(("", "recommended"), *methods), hint=hint)
    return Form("Merge a body", "Merge", f"{HOME}/bodies", tuple(facts), (method,))


def _merge(visit: Visit, given: Given) -> str:
    try:
        new = NewBody.model_validate({"method": given.get("method") or None})
    except ValueError as error:
        raise invalid("method", "choose one of the list") from error
    visit.rest.merge_body(new)
    return said("/workflows", "started")


def _of_body(visit: Visit) -> Remerge:
    remerge = visit.rest.body_history(visit.path["digest"]).remerge
    if remerge is None:
        what = "the body is the seed's, or was merged from every expert of its newest version"
        raise CoordinatorError(Problem.of(ProblemType.NOT_FOUND, what, todo="merge a body of other experts"))
    return remerge


def _ask_remerge(visit: Visit) -> Form:
    result = _of_body(visit)
    if result.without_estimate is not None:
        gain = f"Expected gain: {result.without_estimate}."
    elif result.expected is None:
        missing = ", ".join(result.missing) or "any domain whose expert is in the body"
        gain = f"The expected gain is unknown. Not evaluated: {missing}."
    else:
        gain = (
            f"Expected gain: {result.expected:+.1f} points of the normalised average. An estimate: the oracle has"
            f" {result.members_oracle:.1f} on domains whose experts are in the body, which are expected to lose"
            f" {result.fall:.1f}, and {result.newcomers_oracle:.1f} on newcomers."
        )
    change = f"The new body includes {', '.join(result.newcomers)}, by the same method. It becomes the current one."
    return Form("Remerge the body", "Merge", f"{HOME}/bodies", (change, gain, _ANEW))


def _remerge(visit: Visit, given: Given) -> str:
    visit.rest.merge_body(_of_body(visit).merge)
    return said("/workflows", "started")


ACTIONS = {
    "/bodies/new": Action(_ask_merge, _merge),
    "/bodies/{digest}/remerge": Action(_ask_remerge, _remerge),
}
