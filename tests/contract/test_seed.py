"""The seed's body over REST, by command and in the dashboard: joining and leaving. Tests continue one another."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file

from moerge.cli.rounds import missing_domains
from moerge.documents.pool import pool_texts
from moerge.errors import CoordinatorError
from moerge_proto.anchors import NewAnchor
from moerge_proto.owners import NewOwner, NewToken, Role
from moerge_proto.rounds import NewRound
from moerge_proto.versions import Version
from moerge_proto.workflows import WorkflowState
from support.dashboard import act, signed_in
from support.federation import Federation, eventually, federation_of
from support.merging import SMALL


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """law and art with parts for the seed's body; both have contributed."""
    with federation_of(tmp_path_factory.mktemp("seed"), "law", "art", seeded=True, **SMALL) as federation:
        federation.contribute(federation.body())
        yield federation


def files(version: Version) -> dict[str, str]:
    return {file.name: file.sha256 for file in version.files if "moerge" not in file.name and file.name != "README.md"}


def test_a_seed_s_body_is_shown_with_its_source(federation: Federation) -> None:
    body = federation.body()
    assert (body.method, body.experts, body.source) == ("seed", [], "seed")
    assert re.search(r"made of\s+│ seed ", federation.moerge("body", "show", COLUMNS="300"))
    assert re.search(rf"{body.digest}\s+│ seed\s+│ seed\s+│ yes", federation.moerge("body", "list", COLUMNS="300"))
    with signed_in(federation.server) as browser:
        assert '<td>seed</td>\n      <td class="words">seed</td>' in browser.get("/bodies").text


def test_a_head_is_averaged_until_every_expert_has_a_head_contribution(federation: Federation) -> None:
    federation.contribute_heads("law")
    assert federation.solve().lineage.head.method == "average"
    with pytest.raises(CoordinatorError, match="no head contribution of art"):
        federation.solve(head="regmean")
    federation.contribute_heads("art")
    row = federation.solve()
    assert (row.lineage.head.method, len(row.lineage.head.contributions)) == ("regmean", 2)
    for kind in ("router", "head"):
        assert kind in federation.moerge("contribution", "list", COLUMNS="300").lower()


def test_the_command_solves_a_head_and_shows_it(federation: Federation) -> None:
    federation.moerge("version", "solve", "--head", "seed")
    federation.moerge("version", "solve")
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


def test_a_newcomer_changes_no_other_part_and_asks_for_no_remerge(federation: Federation) -> None:
    before = federation.solve()
    federation.add("code", **SMALL)
    assert missing_domains(federation.operator, None) == ["code"], "`version solve --wait` waits for it"
    with signed_in(federation.server) as browser:
        assert "The newest version has no expert for code" in browser.get("/versions").text
    federation.contribute(federation.body(), "code")
    assert missing_domains(federation.operator, None) == []
    federation.contribute_heads("code")
    after = federation.solve()
    kept = {name for name, digest in files(before).items() if files(after).get(name) == digest}
    assert {"model-body.safetensors", "model-expert-00000.safetensors", "model-expert-00001.safetensors"} <= kept
    assert "model-head.safetensors" not in kept
    history = federation.operator.body_history("current")
    assert (history.remerge, history.before) == (None, None)
    assert all(not version.newcomers for version in history.versions)
    for words in (federation.moerge("body", "history", COLUMNS="300"), federation.moerge("body", "list")):
        assert "newcomer" not in words.partition("\n")[2]
    with signed_in(federation.server) as browser:
        for path in ("/versions", "/bodies"):
            text = browser.get(path).text
            assert "emerge" not in text, path
            assert "ewcomer" not in text, path
        assert browser.get("/bodies/current/remerge").status_code == 404
    with pytest.raises(AssertionError, match="it is the seed's"):
        federation.moerge("body", "remerge")


def test_a_leaver_needs_no_remerge(federation: Federation) -> None:
    body, digest = federation.body(), federation.expert("code").digest
    before = next(row for row in federation.operator.versions() if row.lineage.domains == ["law", "art"])
    with signed_in(federation.server) as browser:
        question = browser.get(f"/experts/{digest}/withdraw").text
        assert "Later versions have no MLPs, head or router column of it." in question
        assert "emerge" not in question
    assert "Every owner contributes again" not in federation.moerge("expert", "withdraw", "code", "--yes")
    assert federation.body() == body
    assert federation.body().retired is None
    again = federation.solve(head=before.lineage.head.method)
    assert files(again)["model-head.safetensors"] == files(before)["model-head.safetensors"]


def test_the_seed_s_body_is_made_current_again(federation: Federation) -> None:
    seed = federation.body()
    assert federation.moerge("body", "merge", "--method", "seed") == seed.digest
    with signed_in(federation.server) as browser:
        assert '<option value="seed"' in browser.get("/bodies/new").text
        assert act(browser, "/bodies/new", method="seed").headers["Location"].endswith("said=started")
    eventually(lambda: federation.body() == seed)


def routers_of(federation: Federation) -> dict[str, str]:
    """Domain -> its active router contribution."""
    return {row.domain: row.digest for row in federation.operator.contributions() if row.active}


FIRST = ["A recipe for bread of rye.", "Dear Anna, the boat leaves at noon."]


def with_anchor(federation: Federation, texts: list[str] | None = None) -> str:
    return federation.operator.wait(federation.operator.add_anchor(NewAnchor(texts=texts)))


def test_an_anchor_is_the_last_expert_of_later_versions_until_it_is_off(federation: Federation, tmp_path: Path) -> None:
    before, members = federation.solve(), routers_of(federation)
    first = with_anchor(federation, FIRST)
    assert with_anchor(federation, FIRST) == first, "the same bytes again"
    assert routers_of(federation) == {**members, "general": first}
    version = federation.solve()
    assert version.lineage.domains == [*before.lineage.domains, "general"]
    assert (version.lineage.head.method, len(version.lineage.head.contributions)) == ("regmean", 3)
    assert files(version)["model-expert-00000.safetensors"] == files(before)["model-expert-00000.safetensors"]
    seed = load_file(federation.folder / "seed" / "model.safetensors")
    anchor = load_file(federation.version(version.number) / "model-expert-00002.safetensors")
    assert anchor["model.layers.0.block_sparse_moe.experts.2.w1.weight"].equal(
        seed["model.layers.0.mlp.gate_proj.weight"]
    )
    assert "`general` is the anchor" in (federation.version(version.number) / "README.md").read_text()
    table = federation.operator.version_table(version.number)
    assert (table.domains, table.missing) == (version.lineage.domains, before.lineage.domains)
    assert all(owner.name != "general" for owner in federation.operator.owners())
    federation.add("late", **SMALL)
    federation.contribute(federation.body(), "late")
    federation.contribute_heads("late")
    assert federation.solve().lineage.domains == [*before.lineage.domains, "late", "general"]
    federation.operator.withdraw_expert(federation.expert("late").digest)

    (tmp_path / "news.txt").write_text("The council met on Monday. ")
    news = federation.moerge("coordinator", "anchor", "--text", tmp_path / "news.txt").strip()
    assert routers_of(federation) == {**members, "general": news} != {**members, "general": first}
    assert with_anchor(federation, FIRST) == first
    assert federation.solve().number == version.number
    federation.moerge("coordinator", "anchor", "--off")
    assert routers_of(federation) == members
    assert federation.solve().number == before.number, "the lineage of a coordinator without an anchor"
    assert not federation.operator.version(version.number).contains_withdrawn
    with signed_in(federation.server) as browser:
        assert "no expert for general" not in browser.get("/versions").text


def test_an_anchor_has_the_pool_or_enough_text_and_no_tuning_split(federation: Federation, tmp_path: Path) -> None:
    (tmp_path / "word.txt").write_text("word")
    with pytest.raises(CoordinatorError, match="4 tokens in 1 documents"):
        with_anchor(federation, ["word"])
    with pytest.raises(AssertionError, match="--text: text without an anchor"):
        federation.moerge("coordinator", "anchor", "--text", tmp_path / "word.txt", "--off")
    pool = federation.moerge("coordinator", "anchor").strip()
    documents = {row.digest: row.documents for row in federation.operator.contributions() if row.active}
    assert documents[pool] == len(pool_texts())
    with pytest.raises(CoordinatorError, match="has no tuning split"):
        federation.solve(options={"lambda_scale": "auto"})
    federation.operator.remove_anchor()


def test_a_coordinator_that_is_killed_as_it_computes_an_anchor_goes_on(federation: Federation) -> None:
    undisturbed = with_anchor(federation, FIRST)
    federation.operator.remove_anchor()
    started = federation.operator.add_anchor(NewAnchor(texts=FIRST))
    done, files = WorkflowState.DONE, federation.server.home / "anchor"
    eventually(
        lambda: any(files.glob("*")) or federation.operator.workflow(started.id).state is done
    )  # in its first step, or at its end
    federation.server.kill()
    federation.server.start()
    assert federation.operator.wait(started) == undisturbed
    assert routers_of(federation)["general"] == undisturbed
    assert not any((federation.server.home / "anchor").iterdir())
    federation.operator.remove_anchor()


def test_nobody_has_the_anchor_s_name(federation: Federation) -> None:
    with pytest.raises(CoordinatorError, match="'general' is the anchor's name"):
        federation.operator.add_owner(NewOwner(name="general", domains=["all"]))
    with pytest.raises(CoordinatorError, match="'general' is the anchor's name"):
        federation.operator.add_owner(NewOwner(name="all", domains=["general"]))
    with pytest.raises(CoordinatorError, match="owner 'general'"):
        federation.operator.add_token(NewToken(role=Role.OWNER, owner="general"))
    round = {"name": "all", "kind": "router", "domains": ["general"], "minimum": 1, "deadline": "2100-01-01T00:00:00Z"}
    with pytest.raises(CoordinatorError, match="'general' has no owner"):
        federation.operator.open_round(NewRound.model_validate(round))
