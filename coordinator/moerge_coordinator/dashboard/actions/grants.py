"""Actions on grants: grant, revoke, make the parts of a version."""

from datetime import UTC, datetime

from pydantic import TypeAdapter, ValidationError
from starlette.responses import Response

from moerge_coordinator.dashboard.forms import Action, Field, Form, Given, invalid, said
from moerge_coordinator.dashboard.grants import readers
from moerge_coordinator.dashboard.site import HOME, Visit
from moerge_proto.digests import Name
from moerge_proto.grants import ALL

_NAME = TypeAdapter[str](Name)
_KEPT = "What was pulled before can't be taken back."
_PLACE = "/grants"


def _ask_grant(visit: Visit) -> Form:
    domain = visit.path["domain"]
    before = visit.rest.readers(domain)
    facts = ["It holds for your present expert and for later ones."]
    if not before.own_rule and before.readers:
        facts.append(f"Until now all readers could use {domain}. After this, only those to whom you grant it.")
    facts.append("What is pulled until its end can't be taken back.")
    fields = (
        Field("reader", "Reader", required=True, hint=f"the name of its token, or of a group; {ALL}: all readers"),
        Field("until", "End", kind="date", hint="the start of that day, in UTC; empty: until you revoke it"),
    )
    return Form(f"Grant the expert of {domain}", "Grant", HOME + _PLACE, tuple(facts), fields)


def _grant(visit: Visit, given: Given) -> str:
    try:
        name = _NAME.validate_python(given.get("reader", ""))
    except ValidationError as error:
        raise invalid("reader", "expected a name of lower-case letters, digits, - and _") from error
    visit.rest.grant(visit.path["domain"], name, _end(given.get("until", "")))
    return said(_PLACE, "granted")


def _end(value: str) -> datetime | None:
    try:
        return datetime.strptime(value, "%Y-%m-%d").replace(tzinfo=UTC) if value else None
    except ValueError as error:
        raise invalid("until", f"expected a date such as 2027-06-30, found {value!r}") from error


def _ask_revoke(visit: Visit) -> Form:
    domain, reader = visit.path["domain"], visit.path["reader"]
    before = visit.rest.readers(domain)
    ended = f"Next pulls of {'readers' if reader == ALL else reader} have no MLPs of the expert of {domain}."
    facts = [ended, _KEPT]
    if reader == ALL and not before.own_rule:
        facts.insert(0, f"Nobody may use {domain} then, until you grant it.")
    heading = f"End the use of {domain} by {'all readers' if reader == ALL else reader}"
    return Form(heading, "Revoke", HOME + _PLACE, tuple(facts), danger=True)


def _revoke(visit: Visit, given: Given) -> str | Response:
    domain, reader = visit.path["domain"], visit.path["reader"]
    done = visit.rest.revoke_grant(domain, reader)
    if not done.still:
        return said(_PLACE, "ended")
    return readers(visit, said=f"{reader} may still use {domain}, because it is granted to {', '.join(done.still)}.")


def _ask_make(visit: Visit) -> Form:
    number = visit.path["number"]
    names = [row.name for row in visit.rest.version_parts(number) if not row.made]
    facts = (
        f"Not made yet: {len(names)}. Otherwise the first pull of a reader makes its part, and waits for it.",
        "Each part has its own routers, and its own head if that is solved. MLPs aren't copied.",
    )
    return Form(f"Make the parts of version {number}", "Make", f"{HOME}/versions/{number}", facts)


def _make(visit: Visit, given: Given) -> str:
    visit.rest.make_parts(visit.path["number"])
    return said("/workflows", "started")


ACTIONS = {
    "/grants/{domain}/grant": Action(_ask_grant, _grant),
    "/grants/{domain}/{reader}/revoke": Action(_ask_revoke, _revoke),
    "/versions/{number:int}/parts": Action(_ask_make, _make),
}
