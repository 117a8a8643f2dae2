"""Versions under a seed's body over REST, by command and in the dashboard: heads.

Tests continue one another.
"""

import re
from collections.abc import Iterator

import pytest

from moerge_proto.versions import Version
from support.dashboard import act, signed_in
from support.federation import Federation, eventually, federation_of
from support.merging import SMALL


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """law and art with parts for the seed's body; both have contributed."""
    with federation_of(tmp_path_factory.mktemp("seed"), "law", "art", **SMALL) as federation:
        federation.contribute(federation.body())
        yield federation


def files(version: Version) -> dict[str, str]:
    return {file.name: file.sha256 for file in version.files if "moerge" not in file.name and file.name != "README.md"}


def test_a_seed_s_body_is_shown_with_its_source(federation: Federation) -> None:
    body = federation.body()
    assert (body.source, body.current) == ("seed", True)
    shown = federation.moerge("body", "current", COLUMNS="300")
    assert body.digest in shown
    assert re.search(r"seed\s+│ seed ", shown)
    assert re.search(rf"{body.digest}\s+│ seed\s+│ llama\s", federation.moerge("body", COLUMNS="300"))
    with signed_in(federation.server) as browser:
        assert '<td class="words">seed</td>' in browser.get("/bodies").text


def test_the_command_solves_a_head_and_shows_it(federation: Federation) -> None:
    assert federation.solve().lineage.head.method == "average"
    federation.contribute_heads()
    listed = federation.moerge("contribution", "list", COLUMNS="300").lower()
    assert all(kind in listed for kind in ("router", "head"))
    federation.moerge("version", "solve")
    federation.moerge("version", "solve", "--head", "seed")
    numbers = {row.lineage.head.method: row.number for row in federation.operator.versions()}
    average, seed, solved = numbers["average"], numbers["seed"], numbers["regmean"]
    assert "head regmean" in federation.moerge("version", "show", solved, COLUMNS="300")
    assert "head contribution" not in federation.moerge("version", "show", seed, COLUMNS="300")
    assert "average -> regmean" in federation.moerge("version", "compare", average, solved, COLUMNS="300")
    signed = federation.operator.version_signatures(solved)
    assert sorted(row.kind for row in signed) == ["head", "head", "router", "router"]
    routers = {files(federation.operator.version(number))["model-router.safetensors"] for number in numbers.values()}
    assert len(routers) == 1, "routers don't depend on the head"
    with signed_in(federation.server) as browser:
        assert ">regmean</span>" in browser.get(f"/versions/{solved}").text
        assert "head contribution" in browser.get(f"/versions/{solved}").text
        assert "average → regmean" in browser.get(f"/compare?before={average}&version={solved}").text
        assert "head regmean → seed" in browser.get("/versions").text


def test_a_head_is_chosen_in_the_browser(federation: Federation) -> None:
    with signed_in(federation.server) as browser:
        page = browser.get("/solve").text
        assert all(f'<option value="{name}"' in page for name in ("", "seed", "average", "regmean"))
        assert act(browser, "/solve", head="all", ridge_lambda="0.5", top_k="1").status_code == 422
        act(browser, "/solve", head="seed", ridge_lambda="0.5", top_k="1")
        eventually(lambda: next(iter(federation.operator.versions(newest=True))).lineage.options.ridge_lambda == 0.5)
    assert next(iter(federation.operator.versions(newest=True))).lineage.head.method == "seed"
