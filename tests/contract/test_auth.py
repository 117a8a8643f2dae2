"""Every route asks who is there: no token, a wrong role, another owner's things."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from moerge_proto.digests import content_digest
from moerge_proto.owners import NewToken, Role
from moerge_proto.uploads import Chunk, NewUpload, Upload
from support.federation import (
    Federation,
    Member,
    eventually,
    federation_of,
    honest,
    merge,
    send,
)
from support.processes import Coordinator
from support.statistics import written

# Who may call what; every route of the OpenAPI document must stand here.
ROLES: dict[tuple[str, str], set[Role]] = {
    ("get", "/v1/identity"): set(Role),
    ("post", "/v1/identity/rotate"): {Role.OWNER},
    ("post", "/v1/owners"): {Role.OPERATOR},
    ("get", "/v1/owners"): {Role.OPERATOR},
    ("post", "/v1/owners/{name}/approve"): {Role.OPERATOR},
    ("post", "/v1/owners/{name}/revoke"): {Role.OPERATOR},
    ("post", "/v1/tokens"): {Role.OPERATOR},
    ("get", "/v1/tokens"): {Role.OPERATOR},
    ("delete", "/v1/tokens/{id}"): {Role.OPERATOR},
    ("post", "/v1/tokens/{id}/rotate"): {Role.OPERATOR},
    ("get", "/v1/audit"): {Role.OPERATOR},
    ("put", "/v1/progress"): {Role.OWNER},
    ("get", "/v1/progress"): {Role.OPERATOR, Role.OWNER},
    ("get", "/metrics"): {Role.OPERATOR, Role.READER},
    ("post", "/v1/uploads"): {Role.OWNER},
    ("put", "/v1/uploads/{upload}/chunks/{sha256}"): {Role.OWNER},
    ("post", "/v1/uploads/{upload}/commit"): {Role.OWNER},
    ("delete", "/v1/uploads/{upload}"): {Role.OWNER},
    ("post", "/v1/experts"): {Role.OPERATOR, Role.OWNER},
    ("post", "/v1/experts/check"): {Role.OWNER},
    ("get", "/v1/experts"): {Role.OPERATOR, Role.OWNER},
    ("get", "/v1/experts/{digest}"): {Role.OPERATOR, Role.OWNER},
    ("post", "/v1/trunks"): {Role.OPERATOR},
    ("get", "/v1/trunks"): {Role.OPERATOR, Role.OWNER},
    ("get", "/v1/trunks/{digest}"): {Role.OPERATOR, Role.OWNER},
    ("get", "/v1/trunks/{digest}/contributors"): {Role.OPERATOR},
    ("get", "/v1/trunks/{digest}/history"): set(Role),
    ("get", "/v1/trunks/{digest}/files/{name}"): {Role.OPERATOR, Role.OWNER},
    ("get", "/v1/contributions"): {Role.OPERATOR, Role.OWNER},
    ("put", "/v1/contributions/{digest}"): {Role.OWNER},
    ("get", "/v1/contributions/{digest}"): {Role.OPERATOR, Role.OWNER},
    ("post", "/v1/versions"): {Role.OPERATOR},
    ("get", "/v1/versions"): set(Role),
    ("get", "/v1/versions/{number}"): set(Role),
    ("get", "/v1/versions/{number}/files/{name}"): set(Role),
    ("post", "/v1/versions/{number}/evaluations"): {Role.OWNER},
    ("get", "/v1/versions/{number}/evaluations"): {Role.OPERATOR, Role.OWNER},
    ("get", "/v1/versions/{number}/table"): set(Role),
    ("get", "/v1/workflows"): {Role.OPERATOR},
    ("get", "/v1/workflows/{id}"): {Role.OPERATOR, Role.OWNER},
    ("post", "/v1/workflows/{id}/retry"): {Role.OPERATOR},
    ("get", "/v1/settings"): {Role.OPERATOR},
    ("post", "/v1/experts/{digest}/withdraw"): {Role.OPERATOR, Role.OWNER},
    ("post", "/v1/experts/{digest}/purge"): {Role.OPERATOR, Role.OWNER},
    ("post", "/v1/contributions/{digest}/withdraw"): {Role.OPERATOR, Role.OWNER},
    ("post", "/v1/rounds"): {Role.OPERATOR},
    ("get", "/v1/rounds"): {Role.OPERATOR, Role.OWNER},
    ("get", "/v1/rounds/{name}"): {Role.OPERATOR},
    ("patch", "/v1/rounds/{name}"): {Role.OPERATOR},
    ("patch", "/v1/versions/{number}"): {Role.OPERATOR},
    ("delete", "/v1/versions/{number}"): {Role.OPERATOR},
    ("get", "/v1/versions/{number}/card"): set(Role),
    ("get", "/v1/versions/{number}/report"): {Role.OPERATOR, Role.READER},
    ("get", "/v1/versions/{number}/influence"): {Role.OPERATOR},
    ("get", "/v1/versions/{number}/engines"): set(Role),
    ("get", "/v1/versions/{number}/signatures"): set(Role),
    ("get", "/v1/versions/{number}/compare/{other}"): set(Role),
    ("get", "/v1/aliases"): set(Role),
    ("get", "/v1/aliases/{name}"): set(Role),
    ("put", "/v1/aliases/{name}"): {Role.OPERATOR},
    ("delete", "/v1/aliases/{name}"): {Role.OPERATOR},
    ("post", "/v1/aliases/{name}/rollback"): {Role.OPERATOR},
    ("get", "/v1/aliases/{name}/history"): {Role.OPERATOR},
}
OPEN = {("get", "/healthz"), ("get", "/readyz")}
EXAMPLES = {
    "upload": "1",
    "sha256": "0" * 64,
    "digest": "0" * 64,
    "number": "1",
    "other": "1",
    "name": "x",
    "id": "1000000",
}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with federation_of(tmp_path_factory.mktemp("auth"), "law", "art") as made:
        yield made


@pytest.fixture(scope="module")
def server(federation: Federation) -> Coordinator:
    return federation.server


@pytest.fixture(scope="module")
def http(server: Coordinator) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url) as client:
        yield client


@pytest.fixture(scope="module")
def members(federation: Federation) -> list[Member]:
    return [*federation.members.values()]


@pytest.fixture(scope="module")
def tokens(server: Coordinator, members: list[Member]) -> dict[Role, str]:
    with server.client() as operator:
        reader = operator.add_token(NewToken(role=Role.READER)).secret
    return {Role.OPERATOR: server.operator_token, Role.OWNER: members[0].token, Role.READER: reader}


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
def revoked(server: Coordinator) -> str:
    with server.client() as operator:
        token = operator.add_token(NewToken(role=Role.OPERATOR))
        operator.revoke_token(token.id)
    return token.secret


@pytest.fixture(scope="module")
def expired(server: Coordinator, http: httpx.Client) -> str:
    with server.client() as operator:
        token = operator.add_token(NewToken(role=Role.OPERATOR, expires=datetime.now(UTC) + timedelta(seconds=0.5)))
    eventually(lambda: call(http, "get", "/v1/identity", token.secret).status_code == 401)
    return token.secret


def test_the_openapi_document_tells_the_roles_of_the_table_above(server: Coordinator) -> None:
    paths: dict[str, Any] = httpx.get(f"{server.url}/openapi.json").json()["paths"]
    operations = {(method, path): each for path, methods in paths.items() for method, each in methods.items()}
    assert operations.keys() == {*ROLES, *OPEN}
    for route, operation in operations.items():
        assert {Role(role) for role in operation.get("x-roles", [])} == ROLES.get(route, set())
        assert ("security" in operation) == (route in ROLES)


def test_without_a_valid_token_every_route_is_closed_and_says_why(
    http: httpx.Client, expired: str, revoked: str
) -> None:
    details = dict.fromkeys((None, "moerge_wrong", ""), "no valid token")
    details |= {expired: "the token expired on", revoked: "the token was revoked on"}
    wrong = [
        f"{method} {path}, {detail}: {response.status_code} {response.text}"
        for method, path in ROLES
        for token, detail in details.items()
        if not is_closed(response := call(http, method, path, token), detail)
    ]
    assert wrong == []


def test_only_the_roles_of_the_table_may_call(http: httpx.Client, tokens: dict[Role, str]) -> None:
    wrong = [
        f"{method} {path} as {role}: {response.status_code} {response.text}"
        for (method, path), roles in ROLES.items()
        for role in Role
        if (response := call(http, method, path, tokens[role])).status_code >= 500
        or (response.status_code == 403) != (role not in roles)
    ]
    assert wrong == []


def test_on_another_owner_s_thing_every_route_of_owners_answers_as_if_it_were_not_there(
    server: Coordinator, members: list[Member], tmp_path: Path
) -> None:
    law, art = members
    trunk = merge(server)
    sent = send(law, written(tmp_path / "contribution", *honest(server, law, trunk)))
    new = NewUpload(sha256="1" * 64, size=1, chunks=[Chunk(sha256=sent.digest, size=1)])
    upload = law.client.http.post(Upload, "/v1/uploads", new).id
    with server.client() as operator:
        work = next(each.id for each in operator.workflows() if each.result == sent.digest)
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
    }
    shared = {"/v1/trunks/{digest}", "/v1/trunks/{digest}/history", "/v1/trunks/{digest}/files/{name}"}
    shared |= {"/v1/versions/{number}", "/v1/versions/{number}/engines"}
    shared |= {"/v1/versions/{number}/card", "/v1/versions/{number}/compare/{other}", "/v1/aliases/{name}"}
    shared |= {f"/v1/versions/{{number}}/{what}" for what in ("signatures", "files/{name}", "evaluations", "table")}
    named = {path for (_, path), roles in ROLES.items() if Role.OWNER in roles and "{" in path}
    assert named - shared == things.keys()
    for (method, path), roles in ROLES.items():
        if path in things and Role.OWNER in roles:
            headers = {"Authorization": f"Bearer {art.token}", "Content-Digest": content_digest(sent.digest)}
            url = server.url + path.format(**things[path])
            response = httpx.request(method, url, headers=headers, json=None if method == "get" else {})
            if method == "put" and path == "/v1/contributions/{digest}":
                expected = (409, "urn:moerge:problem:not-ready")  # as of any file that the caller has not uploaded
            else:
                expected = (404, "urn:moerge:problem:not-found")
            assert (response.status_code, response.json()["type"]) == expected, (method, path)
    assert {each.digest for each in law.client.contributions() if each.active} == {sent.digest}


def test_an_unknown_query_parameter_is_refused_by_name(server: Coordinator) -> None:
    headers = {"Authorization": f"Bearer {server.operator_token}"}
    response = httpx.get(f"{server.url}/v1/owners?afer=1", headers=headers)
    assert (response.status_code, response.json()["field"], response.json()["todo"]) == (
        422,
        "afer",
        "use one of: after",
    )


def test_an_owner_sees_only_its_own(server: Coordinator, http: httpx.Client, members: list[Member]) -> None:
    law, art = members
    assert [each.owner for each in law.client.experts()] == ["law-owner"]
    [foreign] = art.client.experts()
    assert call(http, "get", f"/v1/experts/{foreign.digest}", law.token).status_code == 404
    with server.client() as operator:
        assert [each.owner for each in operator.experts()] == ["law-owner", "art-owner"]


def test_tokens_are_kept_as_hashes_only(server: Coordinator, tokens: dict[Role, str]) -> None:
    for path in Path(server.home).rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert not any(secret.encode() in data for secret in tokens.values()), path


def test_an_owner_s_token_needs_an_owner_and_others_have_none(server: Coordinator) -> None:
    headers = {"Authorization": f"Bearer {server.operator_token}"}
    for body, status in (
        ({"role": "owner"}, 422),
        ({"role": "reader", "owner": "law-owner"}, 422),
        ({"role": "owner", "owner": "nobody"}, 404),
    ):
        response = httpx.post(f"{server.url}/v1/tokens", headers=headers, json=body)
        assert (response.status_code, response.json()["field"]) == (status, "owner")


def test_a_domain_has_one_owner(server: Coordinator, members: list[Member]) -> None:
    headers = {"Authorization": f"Bearer {server.operator_token}"}
    taken = httpx.post(f"{server.url}/v1/owners", headers=headers, json={"name": "thief", "domains": ["law"]})
    assert (taken.status_code, taken.json()["field"]) == (409, "domains")
    named = httpx.post(f"{server.url}/v1/owners", headers=headers, json={"name": "../x", "domains": ["x"]})
    assert (named.status_code, named.json()["field"]) == (422, "name")
