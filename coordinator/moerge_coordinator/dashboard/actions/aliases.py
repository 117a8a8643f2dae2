"""Actions on aliases: promote, roll back, remove."""

from urllib.parse import quote

from moerge.versions.compare import lost_domains
from moerge_coordinator.dashboard.forms import NOTE, Action, Field, Form, Given, number_of, said
from moerge_coordinator.dashboard.site import HOME, Visit
from moerge_proto.evaluations import VersionTable
from moerge_proto.versions import CHAMPION, Alias, Move, Rollback, Version

_USUAL = (CHAMPION, "candidate")
_OVERRIDE = Field("override", "Reason to promote it nevertheless", hint="it stays in the history", on_refusal=True)


async def _ask_promote(visit: Visit) -> Form:
    number = visit.path["number"]
    found = await visit.rest.get(Version, f"/v1/versions/{number}")
    table = await visit.rest.find(VersionTable, f"/v1/versions/{number}/table")
    there = await visit.rest.all(Alias, "/v1/aliases")
    places = {each.name: each.version for each in there}
    names = list(dict.fromkeys([*_USUAL, *places]))
    facts = [f"{name} points to version {places[name]} now." for name in names if name in places]
    present = await visit.rest.each(Version, [f"/v1/versions/{version}" for version in places.values()])
    for name, before in zip(places, present, strict=True):
        if before is not None and (lost := lost_domains(before, found)):
            facts.append(f"Version {number} lacks domains that {name} has: {', '.join(lost)}. Consumers lose them.")
    if table is not None and table.missing:
        facts.append(f"Not evaluated on {', '.join(table.missing)}: a fall of their scores would not be noticed.")
    return Form(
        heading=f"Promote version {number}",
        button="Promote",
        back=f"{HOME}/versions/{number}",
        facts=(*facts, "Consumers who follow the alias get this version with their next pull."),
        fields=(
            Field("alias", "Alias", value=CHAMPION, hint=f"such as {' or '.join(names)}", required=True),
            NOTE,
            _OVERRIDE,
        ),
    )


async def _promote(visit: Visit, given: Given) -> str:
    number = visit.path["number"]
    move = Move(version=number, note=given.get("note", ""), override=given.get("override", ""))
    await visit.rest.send("PUT", f"/v1/aliases/{quote(given.get('alias', ''), safe='')}", move)
    return said(f"/versions/{number}", "promoted")


async def _ask_roll_back(visit: Visit) -> Form:
    name = visit.path["name"]
    found = await visit.rest.get(Alias, f"/v1/aliases/{name}")
    return Form(
        heading=f"Roll {name} back",
        button="Roll back",
        back=f"{HOME}/aliases/{name}",
        facts=(f"{name} points to version {found.version}. It returns to the version before its last promotion.",),
        fields=(Field("version", "Current version", value=str(found.version), kind="hidden"), NOTE),
    )


async def _roll_back(visit: Visit, given: Given) -> str:
    name = visit.path["name"]
    back = Rollback(version=number_of(given, "version", int), note=given.get("note", ""))
    await visit.rest.send("POST", f"/v1/aliases/{name}/rollback", back)
    return said(f"/aliases/{name}", "rolled-back")


async def _ask_remove(visit: Visit) -> Form:
    name = visit.path["name"]
    found = await visit.rest.get(Alias, f"/v1/aliases/{name}")
    facts = (f"It points to version {found.version}. Consumers who follow it can't pull then. Its history is kept.",)
    return Form(f"Remove the alias {name}", "Remove", f"{HOME}/aliases/{name}", facts, danger=True)


async def _remove(visit: Visit, given: Given) -> str:
    name = visit.path["name"]
    await visit.rest.send("DELETE", f"/v1/aliases/{name}")
    return said(f"/aliases/{name}", "removed")


ACTIONS = {
    "/versions/{number:int}/promote": Action(_ask_promote, _promote),
    "/aliases/{name}/rollback": Action(_ask_roll_back, _roll_back),
    "/aliases/{name}/remove": Action(_ask_remove, _remove),
}
