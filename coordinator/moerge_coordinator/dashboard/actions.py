"""What can be done: each asks first, says what it means, and then is a REST call in the name of who is signed in."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

from moerge.trunk.methods.registry import METHODS
from moerge_coordinator.dashboard.rest import RestError
from moerge_coordinator.dashboard.site import HOME, Action, Field, Form, Visit
from moerge_proto.experts import Expert, Purge, Withdraw
from moerge_proto.history import Remerge, TrunkHistory
from moerge_proto.options import PAPER, RECOMMENDED
from moerge_proto.owners import Owner
from moerge_proto.problems import Problem, ProblemType
from moerge_proto.rounds import NewRound, Round, RoundChange
from moerge_proto.trunks import NewTrunk
from moerge_proto.versions import Alias, Move, NewVersion, Rollback, Version, VersionChange

Given = Mapping[str, str]
_NOTE = Field("note", "Note", hint="why; it stays in the history")
_ALIASES = ("champion", "candidate")


def _invalid(field: str, what: str, todo: str = "") -> RestError:
    return RestError(Problem.of(ProblemType.INVALID_REQUEST, what, field=field, todo=todo))


def _number(given: Given, field: str, kind: type[float] = float) -> float:
    try:
        return kind(given.get(field, ""))
    except ValueError as error:
        raise _invalid(field, f"expected a number, found {given.get(field, '')!r}") from error


def _said(path: str, word: str) -> str:
    return f"{HOME}{path}?said={word}"


def _version(visit: Visit) -> str:
    return f"/versions/{visit.request.path_params['number']}"


async def _ask_promote(visit: Visit) -> Form:
    number = visit.request.path_params["number"]
    await visit.rest.get(Version, f"/v1/versions/{number}")
    there = await visit.rest.all(Alias, "/v1/aliases")
    places = {each.name: each.version for each in there}
    names = list(dict.fromkeys([*_ALIASES, *places]))
    facts = [f"{name} points to version {places[name]} now." for name in names if name in places]
    return Form(
        heading=f"Promote version {number}",
        button="Promote",
        back=f"{HOME}{_version(visit)}",
        facts=(*facts, "Consumers who follow the alias get this version with their next pull."),
        fields=(Field("alias", "Alias", value="champion", hint=f"such as {' or '.join(names)}", required=True), _NOTE),
    )


async def _promote(visit: Visit, given: Given) -> str:
    move = Move(version=visit.request.path_params["number"], note=given.get("note", ""))
    await visit.rest.send("PUT", f"/v1/aliases/{quote(given.get('alias', ''), safe='')}", move)
    return _said(_version(visit), "promoted")


async def _ask_roll_back(visit: Visit) -> Form:
    name = visit.request.path_params["name"]
    found = await visit.rest.get(Alias, f"/v1/aliases/{name}")
    return Form(
        heading=f"Roll {name} back",
        button="Roll back",
        back=f"{HOME}/aliases/{name}",
        facts=(f"{name} points to version {found.version} now; it goes back to where it pointed before.",),
        fields=(Field("version", "Points now to", value=str(found.version), kind="hidden"), _NOTE),
    )


async def _roll_back(visit: Visit, given: Given) -> str:
    name = visit.request.path_params["name"]
    back = Rollback(version=int(_number(given, "version", int)), note=given.get("note", ""))
    await visit.rest.send("POST", f"/v1/aliases/{name}/rollback", back)
    return _said(f"/aliases/{name}", "rolled-back")


async def _ask_remove(visit: Visit) -> Form:
    name = visit.request.path_params["name"]
    found = await visit.rest.get(Alias, f"/v1/aliases/{name}")
    facts = (f"It points to version {found.version}. Consumers who follow it find nothing then; its history stays.",)
    return Form(f"Remove the alias {name}", "Remove", f"{HOME}/aliases/{name}", facts, danger=True)


async def _remove(visit: Visit, given: Given) -> str:
    name = visit.request.path_params["name"]
    await visit.rest.send("DELETE", f"/v1/aliases/{name}")
    return _said(f"/aliases/{name}", "removed")


async def _ask_describe(visit: Visit) -> Form:
    found = await visit.rest.get(Version, f"/v1{_version(visit)}")
    return Form(
        heading=f"Note and tags of version {found.number}",
        button="Keep",
        back=f"{HOME}{_version(visit)}",
        fields=(
            Field("note", "Note", value=found.note, lines=True),
            Field("tags", "Tags", value=" ".join(found.tags), hint="lower-case words with spaces between"),
        ),
    )


async def _describe(visit: Visit, given: Given) -> str:
    tags, note = given.get("tags", "").split(), given.get("note", "").replace("\r\n", "\n")
    try:
        change = VersionChange(note=note, tags=tags)
    except ValueError as error:
        raise _invalid("tags", str(error).splitlines()[2].strip(), "use lower-case letters, digits, - and .") from error
    await visit.rest.send("PATCH", f"/v1{_version(visit)}", change)
    return _said(_version(visit), "described")


async def _ask_retire(visit: Visit) -> Form:
    found = await visit.rest.get(Version, f"/v1{_version(visit)}")
    facts = [
        "Its number and lineage stay; files that no other version has are removed for good.",
        "It can't be promoted or pulled any more.",
    ]
    if found.aliases:
        facts.insert(0, f"It is refused as long as an alias points to it: {', '.join(found.aliases)}.")
    return Form(f"Retire version {found.number}", "Retire", f"{HOME}{_version(visit)}", tuple(facts), danger=True)


async def _retire(visit: Visit, given: Given) -> str:
    await visit.rest.send("DELETE", f"/v1{_version(visit)}")
    return _said(_version(visit), "retired")


def _choice(name: str, label: str, first: object, words: Mapping[str, str]) -> Field:
    """A choice whose first option is the recommended one."""
    return Field(name, label, options=tuple(sorted(words.items(), key=lambda each: each[0] != first)))


async def _ask_solve(visit: Visit) -> Form:
    return solve_form()


def solve_form() -> Form:
    """The form for a version; left as it is, it asks for the recommended options."""
    best = RECOMMENDED.solve
    scales = {
        "absolute": "absolute",
        "relative": "relative to the mean diagonal",
        "auto": "chosen by the tuning splits",
    }
    routers = {"discriminant": "discriminants", "ridge": "ridge, as in the paper"}
    weights = {"": "as they contributed", "balanced": "all the same"}
    return Form(
        heading="Solve a version",
        button="Solve",
        back=f"{HOME}/versions",
        facts=("Of the current trunk, with every ready expert whose owner has contributed under it.",),
        fields=(
            Field(
                "ridge_lambda",
                "lambda",
                value=str(best.ridge_lambda),
                hint="added to the diagonal of every layer's gram",
            ),
            _choice("lambda_scale", "lambda is", best.lambda_scale, scales),
            _choice("routers", "Routers", best.routers, routers),
            Field("top_k", "Experts per token", value=str(best.top_k)),
            _choice(
                "domain_weights", "Domains weigh", "balanced" if best.domain_weights == "balanced" else "", weights
            ),
        ),
    )


async def _solve(visit: Visit, given: Given) -> str:
    await visit.rest.send("POST", "/v1/versions", asked_version(given))
    return _said("/workflows", "started")


def asked_version(given: Given) -> NewVersion:
    """The version that a filled in form asks for.

    Raises:
        RestError: a value is invalid.
    """
    chosen: dict[str, object] = {name: given[name] for name in ("lambda_scale", "routers") if name in given}
    chosen |= {"ridge_lambda": _number(given, "ridge_lambda"), "top_k": int(_number(given, "top_k", int))}
    if "domain_weights" in given:
        chosen["domain_weights"] = given["domain_weights"] or {}
    try:
        return NewVersion.model_validate({"options": chosen})
    except ValueError as error:
        raise _invalid("options", "lambda must be above 0, and at least 1 expert per token") from error


async def _ask_merge(visit: Visit) -> Form:
    return Form(
        heading="Merge a trunk",
        button="Merge",
        back=f"{HOME}/trunks",
        facts=(
            "Of every ready expert, in order of arrival. It becomes the current one.",
            "Router contributions don't carry over: every owner's worker computes anew under it.",
        ),
        fields=(
            Field(
                "method",
                "Method",
                options=(
                    ("", "recommended"),
                    *((each.name, f"{each.name}: {each.about}") for each in METHODS.values() if not each.needs),
                ),
                hint=f"recommended: {RECOMMENDED.method}, if every owner has sent a trunk contribution;"
                f" else {PAPER.method}",
            ),
        ),
    )


async def _merge(visit: Visit, given: Given) -> str:
    try:
        asked = NewTrunk.model_validate({"method": given.get("method") or None})
    except ValueError as error:
        raise _invalid("method", "choose one of the list") from error
    await visit.rest.send("POST", "/v1/trunks", asked)
    return _said("/workflows", "started")


async def _of_trunk(visit: Visit) -> Remerge:
    found = (await visit.rest.get(TrunkHistory, f"/v1/trunks/{visit.request.path_params['digest']}/history")).remerge
    if found is None:
        what = "the trunk's newest version has no domain that the trunk was not merged from"
        raise RestError(Problem.of(ProblemType.NOT_FOUND, what, todo="merge a trunk of the experts you want"))
    return found


async def _ask_remerge(visit: Visit) -> Form:
    found = await _of_trunk(visit)
    if found.expected is None:
        gain = f"What to expect is not known; not evaluated: {', '.join(found.missing) or 'any member'}."
    else:
        gain = (
            f"Expected are {found.expected:+.1f} points of the normalised average, an estimate: the oracle is"
            f" {found.members_oracle:.1f} on domains whose experts are in the trunk, who are taken to lose"
            f" {found.fall:.1f}, and {found.newcomers_oracle:.1f} on newcomers."
        )
    return Form(
        heading="Merge the trunk anew",
        button="Merge",
        back=f"{HOME}/trunks",
        facts=(
            f"By the same method, with {', '.join(found.newcomers)} too. It becomes the current one.",
            gain,
            "Router contributions don't carry over: every owner's worker computes anew under it.",
        ),
    )


async def _remerge(visit: Visit, given: Given) -> str:
    await visit.rest.send("POST", "/v1/trunks", (await _of_trunk(visit)).merge)
    return _said("/workflows", "started")


def _expert(visit: Visit) -> str:
    return f"/v1/experts/{visit.request.path_params['digest']}"


async def _ask_withdraw_expert(visit: Visit) -> Form:
    found = await visit.rest.get(Expert, _expert(visit))
    return Form(
        heading=f"Withdraw the expert of {found.domain}",
        button="Withdraw",
        back=f"{HOME}/experts",
        facts=(
            "Its MLPs and its router column are gone from the next version.",
            "If the trunk contains it, the trunk is retired and merged anew without it; every owner is asked again.",
        ),
        fields=(
            Field(
                "serve",
                "Versions that contain it",
                options=(("yes", "are served meanwhile"), ("no", "are withheld from now on")),
            ),
        ),
        danger=True,
    )


async def _withdraw_expert(visit: Visit, given: Given) -> str:
    await visit.rest.send("POST", f"{_expert(visit)}/withdraw", Withdraw(serve=given.get("serve") != "no"))
    return _said("/experts", "withdrawn")


async def _ask_purge(visit: Visit) -> Form:
    found = await visit.rest.get(Expert, _expert(visit))
    retire = (Field("retire", "Versions that contain it", options=(("no", "stay"), ("yes", "are retired too"))),)
    return Form(
        heading=f"Purge the files of the expert of {found.domain}",
        button="Purge",
        back=f"{HOME}/experts",
        facts=("Its files are removed for good, but for those that a version still needs.",),
        fields=retire if visit.operates else (),
        danger=True,
    )


async def _purge(visit: Visit, given: Given) -> str:
    await visit.rest.send("POST", f"{_expert(visit)}/purge", Purge(retire=given.get("retire") == "yes"))
    return _said("/experts", "purged")


def _contribution(visit: Visit) -> str:
    return f"/v1/contributions/{visit.request.path_params['digest']}/withdraw"


async def _ask_withdraw_contribution(visit: Visit) -> Form:
    digest = visit.request.path_params["digest"]
    facts = (
        "It is gone from the next version; versions that were solved with it stay as they are.",
        "Its owner's worker sends it again while its documents are in the data (moerge worker refuse stops that).",
    )
    return Form(f"Withdraw contribution {digest[:10]}", "Withdraw", f"{HOME}/contributions", facts, danger=True)


async def _withdraw_contribution(visit: Visit, given: Given) -> str:
    await visit.rest.send("POST", _contribution(visit))
    return _said("/contributions", "withdrawn")


async def _ask_open_round(visit: Visit) -> Form:
    owners = await visit.rest.all(Owner, "/v1/owners")
    domains = " ".join(domain for owner in owners for domain in owner.domains)
    deadline = datetime.now(UTC) + timedelta(days=7)
    return Form(
        heading="Open a round",
        button="Open",
        back=f"{HOME}/owners",
        facts=("Asks domains to contribute by a deadline. Once it has passed, the minimum is enough.",),
        fields=(
            Field("name", "Name", required=True, hint="such as 2026-w47"),
            Field("kind", "Contributions", options=(("router", "for routers"), ("trunk", "for trunks"))),
            Field("domains", "Domains", value=domains, required=True, hint="with spaces between"),
            Field("minimum", "Minimum", required=True, hint="how many of them are enough"),
            Field(
                "deadline", "Deadline, UTC", value=f"{deadline:%Y-%m-%dT%H:%M}", kind="datetime-local", required=True
            ),
        ),
    )


def _deadline(given: Given) -> datetime:
    try:
        return datetime.fromisoformat(given.get("deadline", "")).replace(tzinfo=UTC)
    except ValueError as error:
        raise _invalid("deadline", "expected a time such as 2026-12-31T18:00") from error


async def _open_round(visit: Visit, given: Given) -> str:
    asked = {
        "name": given.get("name", ""),
        "kind": given.get("kind", "router"),
        "domains": given.get("domains", "").split(),
        "minimum": int(_number(given, "minimum", int)),
        "deadline": _deadline(given),
    }
    try:
        new = NewRound.model_validate(asked)
    except ValueError as error:
        raise _invalid("round", str(error).splitlines()[2].strip()) from error
    await visit.rest.send("POST", "/v1/rounds", new)
    return _said("/owners", "opened")


async def _ask_change_round(visit: Visit) -> Form:
    name = visit.request.path_params["name"]
    found = await visit.rest.get(Round, f"/v1/rounds/{name}")
    return Form(
        heading=f"Change the round {name}",
        button="Change",
        back=f"{HOME}/owners",
        facts=(f"Missing: {', '.join(found.missing) or 'nobody'}.",),
        fields=(
            Field("minimum", "Minimum", value=str(found.minimum), required=True),
            Field(
                "deadline",
                "Deadline, UTC",
                value=f"{found.deadline:%Y-%m-%dT%H:%M}",
                kind="datetime-local",
                required=True,
            ),
        ),
    )


async def _change_round(visit: Visit, given: Given) -> str:
    name = visit.request.path_params["name"]
    try:
        change = RoundChange(minimum=int(_number(given, "minimum", int)), deadline=_deadline(given))
    except ValueError as error:
        raise _invalid("minimum", "expected 1 or more") from error
    await visit.rest.send("PATCH", f"/v1/rounds/{name}", change)
    return _said("/owners", "changed")


async def _ask_revoke(visit: Visit) -> Form:
    name = visit.request.path_params["name"]
    facts = ("Its key and tokens are worth nothing at once. What it contributed stays until it is withdrawn.",)
    return Form(f"Revoke the key and tokens of {name}", "Revoke", f"{HOME}/owners", facts, danger=True)


async def _revoke(visit: Visit, given: Given) -> str:
    await visit.rest.send("POST", f"/v1/owners/{visit.request.path_params['name']}/revoke")
    return _said("/owners", "revoked")


async def _ask_retry(visit: Visit) -> Form:
    id_ = visit.request.path_params["id"]
    facts = ("It starts anew with what it was given; what it had made already, it finds.",)
    return Form("Try the work again", "Try again", f"{HOME}/workflows", (id_, *facts))


async def _retry(visit: Visit, given: Given) -> str:
    await visit.rest.send("POST", f"/v1/workflows/{visit.request.path_params['id']}/retry")
    return _said("/workflows", "started")


ACTIONS: dict[str, Action] = {
    "/versions/{number:int}/promote": Action(_ask_promote, _promote),
    "/versions/{number:int}/describe": Action(_ask_describe, _describe),
    "/versions/{number:int}/retire": Action(_ask_retire, _retire),
    "/aliases/{name}/rollback": Action(_ask_roll_back, _roll_back),
    "/aliases/{name}/remove": Action(_ask_remove, _remove),
    "/solve": Action(_ask_solve, _solve),
    "/trunks/new": Action(_ask_merge, _merge),
    "/trunks/{digest}/remerge": Action(_ask_remerge, _remerge),
    "/experts/{digest}/withdraw": Action(_ask_withdraw_expert, _withdraw_expert),
    "/experts/{digest}/purge": Action(_ask_purge, _purge),
    "/contributions/{digest}/withdraw": Action(_ask_withdraw_contribution, _withdraw_contribution),
    "/rounds/new": Action(_ask_open_round, _open_round),
    "/rounds/{name}/change": Action(_ask_change_round, _change_round),
    "/owners/{name}/revoke": Action(_ask_revoke, _revoke),
    "/workflows/{id}/retry": Action(_ask_retry, _retry),
}
"""Path -> what is done there."""
