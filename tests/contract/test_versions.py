"""Versions over HTTP: pure functions of their lineage, shared files, ranges, pages."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from moerge.cli.common import wait
from moerge.errors import CoordinatorError
from moerge_proto.options import SolveOptions
from moerge_proto.owners import NewOwner
from moerge_proto.trunks import Trunk
from moerge_proto.versions import NewVersion, Version
from support.fleet import Member, honest, joined, merge, send
from support.processes import Coordinator, coordinator, moerge
from support.statistics import written

SETTINGS: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 1024, "num_hidden_layers": 4, "vocab_size": 2000}
SNAPSHOT = Path(__file__).with_name("openapi.json")
"""Write it anew, on purpose only: MOERGE_WRITE_OPENAPI=1 pytest tests/contract -k openapi"""


@dataclass
class Fleet:
    server: Coordinator
    members: list[Member]
    trunk: Trunk

    @property
    def experts(self) -> list[str]:
        return [expert.digest for member in self.members for expert in member.client.experts()]

    def solve(self, new: NewVersion) -> Version:
        with self.server.client() as operator:
            return operator.version(int(wait(operator, operator.solve_version(new))))

    def get(self, path: str, **headers: str) -> httpx.Response:
        token = {"Authorization": f"Bearer {self.server.operator_token}"}
        return httpx.get(f"{self.server.url}/v1{path}", headers=token | headers)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Three experts; the trunk is merged from the first two; all have contributed."""
    folder = tmp_path_factory.mktemp("fleet")
    with coordinator(folder / "home") as server:
        members = [joined(server, domain, folder, seed, **SETTINGS) for seed, domain in enumerate(("law", "art"), 1)]
        trunk = merge(server)
        members.append(joined(server, "code", folder, 3, **SETTINGS))
        for member in members:
            send(member, written(folder / "contribution", *honest(server, member, trunk)))
        yield Fleet(server, members, trunk)
        for member in members:
            member.client.close()


def inode(server: Coordinator, version: Version, name: str) -> int:
    return (server.home / "versions" / str(version.number) / name).stat().st_ino


def test_law_7_a_version_with_one_expert_more_shares_all_the_rest(fleet: Fleet) -> None:
    two = fleet.solve(NewVersion(experts=fleet.experts[:2]))
    three = fleet.solve(NewVersion(experts=fleet.experts))
    shared = ["model-trunk.safetensors", "model-expert-00000.safetensors", "model-expert-00001.safetensors"]
    for name in shared:
        assert inode(fleet.server, two, name) == inode(fleet.server, three, name)
    new = {file.name: file.size for file in three.files if file.new}
    own = new.pop("model-expert-00002.safetensors")
    assert not set(new) & set(shared)
    assert sum(new.values()) < 0.01 * three.bytes_total
    assert three.bytes_written == own + sum(new.values())
    [trunk] = [file for file in two.files if file.name == "model-trunk.safetensors"]
    assert not trunk.new  # it is the file that merging wrote
    assert two.bytes_written == two.bytes_total - trunk.size
    assert (fleet.server.home / "versions" / "1" / shared[0]).stat().st_mode & 0o777 == 0o444


def test_law_3_the_same_lineage_is_the_same_version(fleet: Fleet) -> None:
    first = fleet.solve(NewVersion(experts=fleet.experts))
    assert fleet.solve(NewVersion()) == first  # every expert that contributed, in order of arrival
    assert fleet.solve(NewVersion(experts=fleet.experts, trunk=fleet.trunk.digest)) == first
    other = fleet.solve(NewVersion(options=SolveOptions(ridge_lambda=1000.0)))
    assert other.number != first.number
    assert {file.name for file in other.files if file.new} == {
        "README.md", "moerge.json", "moerge-report.json", "model-router.safetensors",
    }  # fmt: skip


def test_experts_stand_in_the_order_asked_for(fleet: Fleet) -> None:
    version = fleet.solve(NewVersion(experts=fleet.experts[::-1]))
    assert version.lineage.domains == ["code", "art", "law"]
    folder = fleet.server.home / "versions" / str(version.number)
    assert json.loads((folder / "moerge.json").read_text()) == json.loads(version.lineage.model_dump_json())
    card = (folder / "README.md").read_text()
    for digest in (*version.lineage.experts, *version.lineage.contributions, fleet.trunk.digest):
        assert digest in card


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"options": {"top_k": 4}}, 422, "options.top_k"),
        ({"options": {"ridge_lambda": 0}}, 422, "options.ridge_lambda"),
        ({"options": {"ridge_lambda": "inf"}}, 422, "options.ridge_lambda"),
        ({"lambda": 1}, 422, "lambda"),
        ({"experts": ["0" * 64]}, 409, "experts"),
        ({"experts": []}, 422, "experts"),
        ({"trunk": "0" * 64}, 404, "trunk"),
    ],
)
def test_what_can_not_be_solved_is_refused_by_field(
    fleet: Fleet, body: dict[str, object], status: int, field: str
) -> None:
    token = {"Authorization": f"Bearer {fleet.server.operator_token}"}
    response = httpx.post(f"{fleet.server.url}/v1/versions", headers=token, json=body)
    assert (response.status_code, response.json()["field"]) == (status, field)
    assert response.headers["Content-Type"] == "application/problem+json"


def test_an_expert_twice_is_refused(fleet: Fleet) -> None:
    with pytest.raises(CoordinatorError, match="twice"):
        fleet.solve(NewVersion(experts=[fleet.experts[0]] * 2))


def test_files_are_served_whole_and_in_ranges_with_their_digest_as_etag(fleet: Fleet) -> None:
    version = fleet.solve(NewVersion())
    file = next(each for each in version.files if each.name == "model-router.safetensors")
    path = f"/versions/{version.number}/files/{file.name}"
    whole = fleet.get(path)
    assert (len(whole.content), whole.headers["ETag"]) == (file.size, f'"{file.sha256}"')
    part = fleet.get(path, Range="bytes=8-31")
    assert (part.status_code, part.content) == (206, whole.content[8:32])
    assert fleet.get(path, Range="bytes=99999999-").status_code == 416


@pytest.mark.parametrize(
    "name", ["..%2f..%2fcoordinator.toml", "coordinator.sqlite", "%2e%2e", "model-trunk.safetensors%00"]
)
def test_only_the_version_s_own_files_are_served(fleet: Fleet, name: str) -> None:
    version = fleet.solve(NewVersion())
    assert fleet.get(f"/versions/{version.number}/files/{name}").status_code == 404
    assert fleet.get(f"/trunks/{fleet.trunk.digest}/files/{name}").status_code == 404


def test_unknown_things_are_problems(fleet: Fleet) -> None:
    for path in ("/versions/999", "/versions/999/files/x", f"/trunks/{'0' * 64}", "/workflows/x", "/nothing"):
        response = fleet.get(path)
        assert (response.status_code, response.json()["type"]) == (404, "urn:moerge:problem:not-found")
    assert fleet.get("/versions/one").json()["field"] == "path.number"


@pytest.mark.parametrize("number", [0, 2**31, 2**64])
@pytest.mark.parametrize("path", ["/versions/{}", "/versions/{}/files/config.json"])
def test_numbers_beyond_every_row_are_no_failure(fleet: Fleet, path: str, number: int) -> None:
    assert fleet.get(path.format(number)).status_code == 422


def test_lists_come_in_pages(fleet: Fleet) -> None:
    """More owners than a page holds; each is listed once, in order."""
    with fleet.server.client() as operator:
        for number in range(105):
            operator.add_owner(NewOwner(name=f"many-{number}", domains=[f"many-{number}"]))
        names = [owner.name for owner in operator.owners()]
    assert len(fleet.get("/owners").json()["items"]) == 100
    assert names == [f"{d}-owner" for d in ("law", "art", "code")] + [f"many-{number}" for number in range(105)]


def test_a_pulled_version_is_the_published_one(fleet: Fleet, tmp_path: Path) -> None:
    version = fleet.solve(NewVersion())
    moerge("pull", version.number, tmp_path / "pulled", **fleet.server.environment())
    published = fleet.server.home / "versions" / str(version.number)
    assert sorted(path.name for path in (tmp_path / "pulled").iterdir()) == sorted(file.name for file in version.files)
    for path in (tmp_path / "pulled").iterdir():
        assert path.read_bytes() == (published / path.name).read_bytes()


def test_the_openapi_document_is_the_contract(fleet: Fleet) -> None:
    document = httpx.get(f"{fleet.server.url}/openapi.json").json()
    if os.environ.get("MOERGE_WRITE_OPENAPI"):
        SNAPSHOT.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    assert document == json.loads(SNAPSHOT.read_text())
