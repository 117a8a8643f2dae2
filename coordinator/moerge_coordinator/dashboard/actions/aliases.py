"""Actions on aliases: promote, roll back, remove."""

from moerge.versions.compare import lost_domains
from moerge_coordinator.dashboard.forms import NOTE, Action, Field, Form, Given, number_of, said
from moerge_coordinator.dashboard.site import HOME, Visit
from moerge_proto.versions import CHAMPION, PromotionCheck

_USUAL = (CHAMPION, "candidate")


def _ask_promote(visit: Visit) -> Form:
    number = visit.path["number"]
    version = visit.rest.version(number)
    places = {alias.name: alias.version for alias in visit.rest.aliases()}
    names = list(dict.fromkeys([*_USUAL, *places]))
    facts = [f"{name} points to version {places[name]} now." for name in names if name in places]
    for name, place in places.items():
        if lost := lost_domains(visit.rest.version(place), version):
            facts.append(f"Version {number} lacks domains that {name} has: {', '.join(lost)}. Consumers lose them.")
    facts.append("Consumers who follow the alias get this version with their next pull.")
    falls = list[str]()
    if visit.operates:
        checked = visit.rest.promotion_check(number)
        falls = checked.falls
        facts += _verdict(checked)
    alias = Field("alias", "Alias", value=CHAMPION, hint=f"such as {' or '.join(names)}", required=True)
    hint = f"only for {CHAMPION}; it stays in the history"
    override = Field("override", "Reason to promote it nevertheless", hint=hint, on_refusal=not falls)
    fields = alias, NOTE, override
    return Form(f"Promote version {number}", "Promote", f"{HOME}/versions/{number}", tuple(facts), fields)


def _verdict(checked: PromotionCheck) -> list[str]:
    """Sentences on the promotion rules."""
    refuse = f"The rules of promotion refuse it as {CHAMPION}"
    refused = [f"{refuse}, unless you give a reason: {fall}." for fall in checked.falls]
    if checked.refusal is not None:
        refused.insert(0, f"{refuse}: {checked.refusal}.")
    allowed = f"The rules of promotion allow it as {CHAMPION}."
    return [*(refused or [allowed]), *(f"A fall would not be noticed: {warning}." for warning in checked.warnings)]


def _promote(visit: Visit, given: Given) -> str:
    number = visit.path["number"]
    visit.rest.promote(given.get("alias", ""), number, given.get("note", ""), given.get("override", ""))
    return said(f"/versions/{number}", "promoted")


def _ask_roll_back(visit: Visit) -> Form:
    name = visit.path["name"]
    alias = visit.rest.alias(name)
    facts = (f"{name} points to version {alias.version}. It returns to the version before its last promotion.",)
    fields = Field("version", "Current version", value=str(alias.version), kind="hidden"), NOTE
    return Form(f"Roll {name} back", "Roll back", f"{HOME}/aliases/{name}", facts, fields)


def _roll_back(visit: Visit, given: Given) -> str:
    name = visit.path["name"]
    visit.rest.roll_back(name, number_of(given, "version", int), given.get("note", ""))
    return said(f"/aliases/{name}", "rolled-back")


def _ask_remove(visit: Visit) -> Form:
    name = visit.path["name"]
    number = visit.rest.alias(name).version
    facts = (f"It points to version {number}. Consumers who follow it can't pull then. Its history is kept.",)
    return Form(f"Remove the alias {name}", "Remove", f"{HOME}/aliases/{name}", facts, danger=True)


def _remove(visit: Visit, given: Given) -> str:
    name = visit.path["name"]
    visit.rest.remove_alias(name)
    return said(f"/aliases/{name}", "removed")


ACTIONS = {
    "/versions/{number:int}/promote": Action(_ask_promote, _promote),
    "/aliases/{name}/rollback": Action(_ask_roll_back, _roll_back),
    "/aliases/{name}/remove": Action(_ask_remove, _remove),
}
