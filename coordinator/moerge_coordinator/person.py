"""The person of a call of the dashboard without a token: someone whom a layer around the app has signed in."""

from starlette.requests import HTTPConnection

from moerge_proto.owners import Identity

PERSON = "moerge.person"
"""The key of the person in a call's scope; no caller can set it."""


def person_of(request: HTTPConnection) -> Identity | None:
    person: Identity | None = request.scope.get(PERSON)
    return person
