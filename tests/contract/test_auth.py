"""Authorisation of every route: tokens, roles, other owners' data."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from moerge_proto.digests import content_digest
from moerge_proto.owners import NewToken, Role
from moerge_proto.uploads import Chunk, NewUpload
from support.federation import Federation, eventually, federation_of, honest, send
from support.processes import Coordinator
from support.statistics import written
from support.uploads import RawClient

SNAPSHOT = json.loads(Path(__file__).with_name("openapi.json").read_text())
OPERATIONS = {(method, path): item for path, methods in SNAPSHOT["paths"].items() for method, item in methods.items()}
ROLES = {route: {*map(Role, item["x-roles"])} for route, item in OPERATIONS.items() if "x-roles" in item}
EXAMPLES = {
    "upload": "1",
    "sha256": "0" * 64,
    "digest": "0" * 64,
    "fingerprint": "0" * 64,
    "number": "1",
    "other": "1",
    "name": "x",
    "id": "1000000",
    "domain": "law",
    "reader": "x",
}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with federation_of(tmp_path_factory.mktemp("auth"), "law", "art") as federation:
        yield federation


@pytest.fixture(scope="module")
def server(federation: Federation) -> Coordinator:
    return federation.server


@pytest.fixture(scope="module")
def http(server: Coordinator) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url) as client:
        yield client


@pytest.fixture(scope="module")
def tokens(federation: Federation) -> dict[Role, str]:
    others = {role: federation.operator.add_token(NewToken(role=role)).secret for role in (Role.READER, Role.METRICS)}
    return {Role.OPERATOR: federation.server.operator_token, Role.OWNER: federation.members["law"].token, **others}


def test_a_token_for_metrics_reads_nothing_else() -> None:
    assert [route for route, roles in ROLES.items() if Role.METRICS in roles] == [("get", "/metrics")]


def call(http: httpx.Client, method: str, path: str, token: str | None) -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return http.request(method, path.format(**EXAMPLES), headers=headers, json=None if method == "get" else {})


def is_closed(response: httpx.Response, detail: str) -> bool:
    return (
        (response.status_code, response.json()["type"]) == (401, "urn:moerge:problem:unauthenticated")
        and detail in response.json()["detail"]
        and response.headers["Content-Type"] == "application/problem+json"
        and response.headers["WWW-Authenticate"] == "Bearer"
    )


@pytest.fixture(scope="module")
def revoked(federation: Federation) -> str:
    token = federation.operator.add_token(NewToken(role=Role.OPERATOR))
    federation.operator.revoke_token(token.id)
    return token.secret


@pytest.fixture(scope="module")
def expired(federation: Federation, http: httpx.Client) -> str:
    expires = datetime.now(UTC) + timedelta(seconds=0.5)
    token = federation.operator.add_token(NewToken(role=Role.OPERATOR, expires=expires))
    eventually(lambda: call(http, "get", "/v1/identity", token.secret).status_code == 401)
    return token.secret


def test_only_health_is_open_to_everybody() -> None:
    assert OPERATIONS.keys() - ROLES.keys() == {("get", "/healthz"), ("get", "/readyz")}
    assert {route for route, item in OPERATIONS.items() if "security" in item} == ROLES.keys()


def test_every_route_needs_a_valid_token(http: httpx.Client, expired: str, revoked: str) -> None:
    details = dict.fromkeys((None, "moerge_wrong", ""), "no valid token")
    details |= {expired: "the token expired on", revoked: "the token was revoked on"}
    wrong = [
        f"{method} {path}, {detail}: {response.status_code} {response.text}"
        for method, path in ROLES
        for token, detail in details.items()
        if not is_closed(response := call(http, method, path, token), detail)
    ]
    assert wrong == []


def test_only_a_route_s_roles_may_call_it(http: httpx.Client, tokens: dict[Role, str]) -> None:
    wrong = [
        f"{method} {path} as {role}: {response.status_code} {response.text}"
        for (method, path), roles in ROLES.items()
        for role in Role
        if (response := call(http, method, path, tokens[role])).status_code >= 500
        or (response.status_code == 403) != (role not in roles)
    ]
    assert wrong == []


def test_another_owner_s_things_are_not_found(federation: Federation, server: Coordinator, tmp_path: Path) -> None:
    (law, art), body = federation.members.values(), federation.body()
    sent = send(law, written(tmp_path / "contribution", *honest(server, law, body)))
    new = NewUpload(sha256="1" * 64, size=1, chunks=[Chunk(sha256=sent.digest, size=1)])
    upload = RawClient(server.url, law.token).open(new).id
    work = next(workflow.id for workflow in federation.operator.workflows() if workflow.result == sent.digest)
    assert law.client.workflow(work).result == sent.digest
    things: dict[str, dict[str, Any]] = {
        "/v1/workflows/{id}": {"id": work},
        "/v1/contributions/{digest}": {"digest": sent.digest},
        "/v1/experts/{digest}": {"digest": sent.expert},
        "/v1/experts/{digest}/withdraw": {"digest": sent.expert},
        "/v1/experts/{digest}/purge": {"digest": sent.expert},
        "/v1/contributions/{digest}/withdraw": {"digest": sent.digest},
        "/v1/uploads/{upload}/chunks/{sha256}": {"upload": upload, "sha256": sent.digest},
        "/v1/uploads/{upload}/commit": {"upload": upload},
        "/v1/uploads/{upload}": {"upload": upload},
        "/v1/grants/{domain}": {"domain": "law"},
        "/v1/grants/{domain}/{reader}": {"domain": "law", "reader": "x"},
    }
    shared = {"/v1/versions/{number}/signed-card", "/v1/bodies/{digest}"}
    shared |= {"/v1/versions/{number}", "/v1/versions/{number}/engines"}
    shared |= {"/v1/versions/{number}/card", "/v1/aliases/{name}"}
    shared |= {f"/v1/versions/{{number}}/{what}" for what in ("signatures", "files/{name}", "evaluations", "table")}
    named = {path for (_, path), roles in ROLES.items() if Role.OWNER in roles and "{" in path}
    assert named - shared == things.keys()
    for (method, path), roles in ROLES.items():
        if path in things and Role.OWNER in roles:
            headers = {"Content-Digest": content_digest(sent.digest)}
            place = path.format(**things[path]).removeprefix("/v1")
            response = RawClient(server.url, art.token).request(
                method, place, headers=headers, json=None if method == "get" else {}
            )
            if method == "put" and path == "/v1/contributions/{digest}":
                expected = (409, "urn:moerge:problem:not-ready")  # as of any file that the caller has not uploaded
            elif "{domain}" in path:
                expected = (403, "urn:moerge:problem:forbidden")  # names of domains are no secret
            else:
                expected = (404, "urn:moerge:problem:not-found")
            assert (response.status_code, response.json()["type"]) == expected, (method, path)
    assert {contribution.digest for contribution in law.client.contributions() if contribution.active} == {sent.digest}
    assert [expert.owner for expert in law.client.experts()] == [law.name]


def test_an_unknown_query_parameter_is_refused_by_name(federation: Federation) -> None:
    response = federation.get("/owners?afer=1")
    assert (response.status_code, response.json()["field"]) == (422, "afer")
    assert response.json()["todo"] == "use one of: after"


def test_tokens_are_kept_as_hashes_only(server: Coordinator, tokens: dict[Role, str]) -> None:
    for path in Path(server.home).rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert not any(secret.encode() in data for secret in tokens.values()), path
