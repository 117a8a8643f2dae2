"""Actions on rounds: open, change."""

from datetime import UTC, datetime, timedelta

from pydantic import ValidationError

from moerge.statistics.kinds import CONTRIBUTIONS
from moerge_coordinator.dashboard.forms import Action, Field, Form, Given, invalid, number_of, reason, said
from moerge_coordinator.dashboard.site import HOME, Visit
from moerge_proto.rounds import NewRound, RoundChange


def _ask_open(visit: Visit) -> Form:
    domains = " ".join(domain for owner in visit.rest.owners() for domain in owner.domains)
    facts = ("A round asks domains to contribute by a deadline. After the deadline, the minimum is enough.",)
    fields = (
        Field("name", "Name", required=True, hint="such as 2026-w47"),
        Field("kind", "Contributions", options=tuple((kind.name, kind.purpose) for kind in CONTRIBUTIONS.values())),
        Field("domains", "Domains", value=domains, required=True, hint="separated by spaces"),
        Field("minimum", "Minimum", required=True, hint="number of domains that are enough after the deadline"),
        _deadline_field(datetime.now(UTC) + timedelta(days=7)),
    )
    return Form("Open a round", "Open", f"{HOME}/owners", facts, fields)


def _deadline_field(value: datetime) -> Field:
    return Field("deadline", "Deadline, UTC", value=f"{value:%Y-%m-%dT%H:%M}", kind="datetime-local", required=True)


def _deadline(given: Given) -> datetime:
    try:
        return datetime.fromisoformat(given.get("deadline", "")).replace(tzinfo=UTC)
    except ValueError as error:
        raise invalid("deadline", "expected a time such as 2026-12-31T18:00") from error


def _open(visit: Visit, given: Given) -> str:
    values = {"minimum": number_of(given, "minimum", int), "deadline": _deadline(given)}
    words = {"name": given.get("name", ""), "domains": given.get("domains", "").split()}
    try:
        new = NewRound.model_validate({"kind": given.get("kind", "router"), **words, **values})
    except ValidationError as error:
        raise invalid("round", reason(error)) from error
    visit.rest.open_round(new)
    return said("/owners", "opened")


def _ask_change(visit: Visit) -> Form:
    name = visit.path["name"]
    result = visit.rest.round(name)
    facts = (f"Missing: {', '.join(result.missing) or 'none'}.",)
    minimum = Field("minimum", "Minimum", value=str(result.minimum), required=True)
    fields = minimum, _deadline_field(result.deadline)
    return Form(f"Change the round {name}", "Change", f"{HOME}/owners", facts, fields)


def _change(visit: Visit, given: Given) -> str:
    name = visit.path["name"]
    try:
        change = RoundChange(minimum=number_of(given, "minimum", int), deadline=_deadline(given))
    except ValueError as error:
        raise invalid("minimum", "expected 1 or more") from error
    visit.rest.change_round(name, change)
    return said("/owners", "changed")


ACTIONS = {
    "/rounds/new": Action(_ask_open, _open),
    "/rounds/{name}/change": Action(_ask_change, _change),
}
