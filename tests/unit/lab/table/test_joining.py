"""Experts that join one at a time: the versions that are measured, on tiny experts, and as a user asks for them."""

import json
from pathlib import Path
from typing import Any

import pytest

from moerge.errors import MoergeError
from moerge.models.dense import domain_model
from moerge.models.tokens import Tokens
from moerge.progress import LogProgress
from moerge.scoring.perplexity import score, windows
from moerge.statistics import contribution
from moerge.statistics.passes import RouterPass
from moerge.statistics.windows import computed as windowed
from moerge_lab.recipes.base import Fleet
from moerge_lab.recipes.registry import parse
from moerge_lab.table.joining import join, plan
from moerge_lab.table.joining_results import Growth
from moerge_lab.table.measure import Settings, Texts, measure
from moerge_lab.table.table import Run
from support.models import expert, on_trunk, texts
from support.progress import Silent
from support.recipes import fleet
from support.versions import trunk_file
from unit.lab.table.test_table import table


def measured(on: Fleet) -> dict[str, Texts]:
    """Each domain's statistics, and one of its documents held out."""
    return {
        domain.name: Texts(domain.expert, windows([Tokens(domain.statistics[0])], 16, 8), domain.statistics)
        for domain in on.domains
    }


def grown(on: Fleet, *specs: str, first: int = 2, seeds: int = 1) -> Growth:
    domains, runs = measured(on), [Run(*parse(spec)) for spec in specs]
    return join(runs, domains, plan(tuple(domains), first), Settings(seeds=seeds), LogProgress())


def test_first_trunk_is_kept_and_later_versions_also_remerged() -> None:
    assert plan(("a", "b", "c", "d"), 2) == {
        ("a", "b"): [("a", "b"), ("a", "b", "c"), ("a", "b", "c", "d")],
        ("a", "b", "c"): [("a", "b", "c")],
        ("a", "b", "c", "d"): [("a", "b", "c", "d")],
    }


def test_subsets_are_all_ways_in_which_some_join_others() -> None:
    """Of four, from two on: a trunk of two and one or two who join, 6 x (2 + 1), and a trunk of three, 4 x 1."""
    result = plan(("a", "b", "c", "d"), 2, subsets=True)
    ways = [(trunk, version) for trunk, versions in result.items() for version in versions if version != trunk]
    assert len(ways) == len(set(ways)) == 22
    assert all(set(trunk) < set(version) for trunk, version in ways)
    assert result["b", "d"] == [("b", "d"), ("a", "b", "d"), ("b", "c", "d"), ("a", "b", "c", "d")]
    assert len(result) == 6 + 4 + 1


def test_remerge_with_all_experts_equals_the_recipe(tmp_path: Path) -> None:
    on = fleet(tmp_path)
    [joined] = grown(on, "dume:k=2").recipes
    runs = [Run(*parse(name)) for name in ("experts", "dume:k=2", "oracle")]
    whole = measure(runs, measured(on), Settings(), LogProgress())
    last = joined.joining[-1].merged
    assert last.domains == last.trunk == ("d0", "d1", "d2")
    for domain in last.domains:
        assert last.scores[domain].mean == pytest.approx(whole.normalised(whole.row("dume:k=2"), domain).mean, rel=1e-5)
        assert last.oracles[domain].mean == pytest.approx(whole.normalised(whole.row("oracle"), domain).mean, rel=1e-5)


def test_a_newcomer_speaks_through_the_trunk_that_it_is_not_in(tmp_path: Path) -> None:
    on = fleet(tmp_path)
    [joined] = grown(on, "dume").recipes
    first, second = joined.kept
    assert (first.domains, second.domains) == (("d0", "d1"), ("d0", "d1", "d2"))
    assert (first.trunk, second.trunk) == (("d0", "d1"), ("d0", "d1"))
    assert second.oracles["d0"] == first.oracles["d0"]  # routers don't touch it
    trunk = trunk_file([domain.expert for domain in on.domains[:2]], tmp_path / "trunk")
    domain, held = on.domains[2], measured(on)["d2"].held_out
    behind = score(domain_model(*on_trunk(domain.expert, trunk))[0], held, Silent()).perplexity
    alone = score(
        domain_model(
            *on_trunk(domain.expert, trunk_file([domain.expert], tmp_path / "own")),
        )[0],
        held,
        Silent(),
    )
    assert second.oracles["d2"].mean == pytest.approx(100 * alone.perplexity / behind, rel=1e-4)


def test_under_a_kept_trunk_the_newcomer_alone_contributes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on, computed = fleet(tmp_path), list[tuple[str, Path]]()

    def counting(work: RouterPass, *given: Any) -> Any:
        computed.append((work.expert.folder.name, work.trunk.checkpoint.path))
        return windowed(work, *given)

    monkeypatch.setattr(contribution, "computed", counting)
    grown(on, "dume", first=1)
    kept = computed[0][1]
    assert [expert for expert, trunk in computed if trunk == kept] == ["expert-0", "expert-1", "expert-2"]
    assert len(computed) == 3 + 2 + 3


def test_moerge_s_experts_join_a_trunk_of_one(tmp_path: Path) -> None:
    """Behind its own trunk the one expert is hardly changed by the fit; the estimate knows that case."""
    [joined] = grown(fleet(tmp_path, 2), "recommended:fit=1", first=1, seeds=2).recipes
    assert [version.domains for version in joined.kept] == [("d0",), ("d0", "d1")]
    assert joined.kept[0].average.mean == pytest.approx(100, abs=5)
    assert all(len(remerge.expected.values) == 2 for remerge in joined.remerges)


def options_of(folder: Path, count: int = 3) -> dict[str, Any]:
    for slot in range(count):
        expert(folder / f"e{slot}", seed=slot)
        texts(folder / f"t{slot}.jsonl", slot, 80)
    return {
        "expert": [f"d{slot}={folder}/e{slot}" for slot in range(count)],
        "text": [f"d{slot}={folder}/t{slot}.jsonl" for slot in range(count)],
    }


def test_a_user_gets_a_table_and_its_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "table.json"
    options = {**options_of(tmp_path), "subsets": True, "tokens": 50, "context": 32}
    table("joined", **options, recipe=["dume", "dume:tokens=8"], json_file=out)
    result = json.loads(out.read_text())
    assert result["domains"] == ["d0", "d1", "d2"]
    assert [item["row"] for item in result["recipes"]] == ["dume", "dume:tokens=8"]
    for item in result["recipes"]:
        assert [remerge["trunk"] for remerge in item["remerges"]] == [["d0", "d1"], ["d0", "d2"], ["d1", "d2"]]
        by = {
            (*version["trunk"], "|", *version["domains"]): version["average"]["score"] for version in item["versions"]
        }
        gained = by["d0", "d1", "d2", "|", "d0", "d1", "d2"] - by["d0", "d1", "|", "d0", "d1", "d2"]
        assert item["remerges"][0]["gained"]["score"] == pytest.approx(gained)
    said = " ".join(capsys.readouterr().out.split())
    assert "1 d0, d1" in said
    assert "2 + d2" in said
    assert "points in 3 remerges" in said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"recipe": ["averaging"]}, "--recipe averaging: makes no version with a trunk"),
        ({"recipe": ["random"]}, "dume, dume-ood, dume-ties, dume-dare, regmean, recommended"),
        ({"recipe": ["dume-ties"]}, "needs --base"),
        ({"expert": ["d0=.", "d1=."], "text": ["d0=x", "d1=x"]}, "--expert: 2 of 2 experts leave none to join"),
    ],
)
def test_experts_that_can_t_join_are_refused_before_the_work(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    options = {"expert": [f"d{slot}={tmp_path}" for slot in range(3)], "text": [f"d{slot}=x" for slot in range(3)]}
    with pytest.raises(MoergeError) as caught:
        table("joined", **{**options, **change})
    assert said in str(caught.value)
