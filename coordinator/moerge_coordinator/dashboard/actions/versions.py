"""Actions on versions: describe, retire, solve."""

from collections.abc import Sequence

from pydantic import ValidationError

from moerge.bodies.head_kinds import HEADS
from moerge.client.http import optional
from moerge.routers.registry import ROUTERS
from moerge_coordinator.dashboard.forms import Action, Field, Form, Given, choice, invalid, number_of, reason, said
from moerge_coordinator.dashboard.site import HOME, Visit
from moerge_proto.bodies import Contributors
from moerge_proto.recipes import FEDERATED, PAPER, RECOMMENDED
from moerge_proto.versions import NewVersion, VersionChange


def _place(visit: Visit) -> str:
    return f"/versions/{visit.path['number']}"


def _ask_describe(visit: Visit) -> Form:
    result = visit.rest.version(visit.path["number"])
    note = Field("note", "Note", value=result.note, lines=True)
    tags = Field("tags", "Tags", value=" ".join(result.tags), hint="lower-case words, separated by spaces")
    heading = f"Note and tags of version {result.number}"
    return Form(heading, "Save", f"{HOME}{_place(visit)}", fields=(note, tags))


def _describe(visit: Visit, given: Given) -> str:
    tags, note = given.get("tags", "").split(), given.get("note", "").replace("\r\n", "\n")
    try:
        change = VersionChange(note=note, tags=tags)
    except ValidationError as error:
        raise invalid("tags", reason(error), "use lower-case letters, digits, - and .") from error
    visit.rest.change_version(visit.path["number"], change)
    return said(_place(visit), "described")


def _ask_retire(visit: Visit) -> Form:
    result = visit.rest.version(visit.path["number"])
    facts = [
        "Its own files are deleted permanently. Its number and lineage stay.",
        "A retired version can't be promoted or pulled.",
    ]
    if result.aliases:
        facts.insert(0, f"First move or remove the aliases that point to it: {', '.join(result.aliases)}.")
    return Form(f"Retire version {result.number}", "Retire", f"{HOME}{_place(visit)}", tuple(facts), danger=True)


def _retire(visit: Visit, given: Given) -> str:
    visit.rest.retire_version(visit.path["number"])
    return said(_place(visit), "retired")


def _ask_solve(visit: Visit) -> Form:
    return solve_form(optional(visit.rest.contributors))


def solve_form(current: Contributors | None = None) -> Form:
    """The form for a version on the `current` body, with the recommended options as defaults."""
    best, missing = RECOMMENDED.solve, current.missing if current else []
    facts = ["On the current body, with every ready expert that has contributed under it."]
    if current:
        facts.append(f"Contributed: {_names(current.contributed)}. Missing: {_names(missing)}.")
    scales = {
        "absolute": "absolute",
        "relative": "relative to the mean diagonal",
        "auto": "chosen by the tuning splits",
    }
    routers: dict[str, str] = {kind.name: kind.about for kind in ROUTERS.values()}
    weights = {"": "as they contributed", "balanced": "all the same"}
    gram = "added to the diagonal of every layer's gram"
    heads = [(kind.name, f"{kind.name}: {kind.about}") for kind in HEADS.values()]
    rule = f"recommended: the seed's, if every expert keeps it; else {FEDERATED.head}, or without sums {PAPER.head}"
    fields = [
        Field("head", "Head", options=(("", "recommended"), *heads), hint=rule),
        Field("ridge_lambda", "lambda", value=str(best.ridge_lambda), hint=gram),
        choice("lambda_scale", "lambda is", best.lambda_scale, scales),
        choice("routers", "Routers", best.routers, routers),
        Field("top_k", "Experts per token", value=str(best.top_k)),
        choice("domain_weights", "Domains weigh", "balanced" if best.domain_weights == "balanced" else "", weights),
    ]
    if missing:
        fields.append(Field("partial", f"Solve without {_names(missing)}", kind="checkbox"))
    fields.append(Field("accept_loss", "Publish it, however high its loss on public texts is", kind="checkbox"))
    return Form("Solve a version", "Solve", f"{HOME}/versions", tuple(facts), tuple(fields))


def _names(domains: Sequence[str]) -> str:
    return ", ".join(domains) or "none"


def _solve(visit: Visit, given: Given) -> str:
    visit.rest.solve_version(asked_version(given))
    return said("/workflows", "started")


def asked_version(given: Given) -> NewVersion:
    """The requested version of a completed form."""
    chosen: dict[str, object] = {name: given[name] for name in ("lambda_scale", "routers") if name in given}
    chosen |= {"ridge_lambda": number_of(given, "ridge_lambda", float), "top_k": number_of(given, "top_k", int)}
    if "domain_weights" in given:
        chosen["domain_weights"] = given["domain_weights"] or {}
    if (head := given.get("head", "")) not in ("", *HEADS):
        raise invalid("head", "choose one of the list")
    try:
        told = {name: name in given for name in ("partial", "accept_loss")}
        return NewVersion.model_validate({"head": head or None, "options": chosen, **told})
    except ValueError as error:
        raise invalid("options", "lambda must be above 0, and at least 1 expert per token") from error


ACTIONS = {
    "/versions/{number:int}/describe": Action(_ask_describe, _describe),
    "/versions/{number:int}/retire": Action(_ask_retire, _retire),
    "/solve": Action(_ask_solve, _solve),
}
