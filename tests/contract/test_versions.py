"""Versions over REST: lineages, shared files, ranges, refusals; the OpenAPI document."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from moerge_proto.recipes import SolveOptions
from moerge_proto.versions import Version
from support.federation import Federation, federation_of
from support.openapi import contract, written
from support.processes import Coordinator

SETTINGS: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 1024, "num_hidden_layers": 4, "vocab_size": 2000}
SNAPSHOT = Path(__file__).with_name("openapi.json")
"""To renew it: MOERGE_WRITE_OPENAPI=1 pytest tests/contract -k openapi"""


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Three experts; all have contributed."""
    with federation_of(tmp_path_factory.mktemp("versions"), "law", "art", "code", **SETTINGS) as federation:
        federation.contribute(federation.body())
        yield federation


def experts(federation: Federation) -> list[str]:
    return federation.digests("law", "art", "code")


def inode(server: Coordinator, version: Version, name: str) -> int:
    return (server.home / "versions" / str(version.number) / name).stat().st_ino


def test_law_7_a_version_with_one_more_expert_shares_the_rest(federation: Federation) -> None:
    two = federation.solve(experts=experts(federation)[:2])
    three = federation.solve(experts=experts(federation))
    shared = ["model-body.safetensors", "model-expert-00000.safetensors", "model-expert-00001.safetensors"]
    for name in shared:
        assert inode(federation.server, two, name) == inode(federation.server, three, name)
    new = {file.name: file.size for file in three.files if file.new}
    size = new.pop("model-expert-00002.safetensors") + new.pop("model-head.safetensors")
    assert not set(new) & set(shared)
    assert sum(new.values()) < 0.01 * three.bytes_total
    assert three.bytes_written == size + sum(new.values())
    [body] = [file for file in two.files if file.name == "model-body.safetensors"]
    assert not body.new  # it is the file that registering the seed wrote
    assert two.bytes_written == two.bytes_total - body.size
    assert (federation.server.home / "versions" / "1" / shared[0]).stat().st_mode & 0o777 == 0o444


def test_law_3_the_same_lineage_is_the_same_version(federation: Federation) -> None:
    first = federation.solve(experts=experts(federation))
    lineage = json.loads((federation.version(first.number) / "moerge.json").read_text())
    assert lineage == json.loads(first.lineage.model_dump_json())
    assert federation.solve() == first  # every expert that contributed, in order of arrival
    assert federation.solve(experts=experts(federation), body=federation.body().digest) == first
    other = federation.solve(options=SolveOptions(ridge_lambda=1000.0))
    assert other.number != first.number
    assert {file.name for file in other.files if file.new} == {
        "README.md", "moerge.json", "moerge-report.json", "model-router.safetensors",
    }  # fmt: skip


def test_an_impossible_version_is_refused_by_its_field(federation: Federation) -> None:
    response = federation.request("POST", "/versions", json={"options": {"ridge_lambda": "inf"}})
    assert (response.status_code, response.json()["field"]) == (422, "options.ridge_lambda")
    assert response.headers["Content-Type"] == "application/problem+json"


def test_files_have_ranges_and_their_digest_as_etag(federation: Federation) -> None:
    version = federation.solve()
    file = next(item for item in version.files if item.name == "model-router.safetensors")
    path = f"/versions/{version.number}/files/{file.name}"
    whole = federation.get(path)
    assert (len(whole.content), whole.headers["ETag"]) == (file.size, f'"{file.sha256}"')
    part = federation.get(path, Range="bytes=8-31")
    assert (part.status_code, part.content) == (206, whole.content[8:32])
    assert federation.get(path, Range="bytes=99999999-").status_code == 416


def test_unknown_things_are_problems(federation: Federation) -> None:
    for path in ("/versions/999", "/versions/999/files/x", f"/bodies/{'0' * 64}", "/workflows/x", "/nothing"):
        response = federation.get(path)
        assert (response.status_code, response.json()["type"]) == (404, "urn:moerge:problem:not-found")
    assert federation.get("/versions/one").json()["field"] == "path.number"


def test_a_pulled_card_has_number_and_date(federation: Federation, tmp_path: Path) -> None:
    version = federation.solve()
    federation.moerge("pull", version.number, tmp_path / "pulled")
    card, fact = (tmp_path / "pulled" / "README.md").read_text(), f"Version {version.number}, published on "
    [line] = [line for line in card.splitlines(keepends=True) if line.startswith(fact)]
    assert f"{version.created:%Y-%m-%d}. Fetch it with `moerge pull {version.number} my-model`." in line
    assert card.replace(f"{line}\n", "") == (federation.version(version.number) / "README.md").read_text()
    assert card == federation.get(f"/versions/{version.number}/card").text


def test_the_openapi_document_is_the_contract(federation: Federation) -> None:
    served = contract(httpx.get(f"{federation.server.url}/openapi.json").json())
    if os.environ.get("MOERGE_WRITE_OPENAPI"):
        SNAPSHOT.write_text(written(served))
    assert served == json.loads(SNAPSHOT.read_text())
