"""Experts that join one at a time: the measured versions of tiny experts, and figures computed by hand."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.table import Table as RichTable

from moerge.errors import MoergeError
from moerge.fits.fitting import fit
from moerge.merging import assemble
from moerge.models.dense import domain_model
from moerge.models.expert_folder import DenseExpert
from moerge.models.tokens import Tokens
from moerge.progress import LogProgress
from moerge.scoring.perplexity import score, windows
from moerge.statistics import contribution
from moerge.statistics.passes import RouterPass
from moerge.statistics.windows import computed as windowed
from moerge_lab.recipes.base import Fleet
from moerge_lab.recipes.registry import parse
from moerge_lab.table.figure import Figure
from moerge_lab.table.joining import Joined, Version, join
from moerge_lab.table.measure import Settings, Texts, measure
from moerge_lab.table.table import Run
from support.models import expert, on_body, texts
from support.progress import Silent
from support.recipes import fleet, with_average_head
from support.versions import body_file
from unit.lab.table.test_table import table


def measured(on: Fleet) -> dict[str, Texts]:
    """Each domain's statistics, and one of its documents held out."""
    return {
        domain.name: Texts(domain.expert, windows([Tokens(domain.statistics[0])], 16, 8), domain.statistics)
        for domain in on.domains
    }


def joined(on: Fleet, spec: str, seeds: int = 1) -> Joined:
    [result] = join([Run(*parse(spec))], measured(on), Settings(seeds=seeds), LogProgress()).recipes
    return result


def test_remerge_with_all_experts_equals_the_recipe(tmp_path: Path) -> None:
    on = fleet(tmp_path)
    runs = [Run(*parse(name)) for name in ("experts", "dume:k=2", "oracle")]
    whole = measure(runs, measured(on), Settings(), LogProgress())
    last = joined(on, "dume:k=2").remerges[-1].merged
    assert last.domains == last.body == ("d0", "d1", "d2")
    for domain in last.domains:
        assert last.scores[domain].mean == pytest.approx(whole.normalised(whole.row("dume:k=2"), domain).mean, rel=1e-5)
        assert last.oracles[domain].mean == pytest.approx(whole.normalised(whole.row("oracle"), domain).mean, rel=1e-5)


def test_a_newcomer_speaks_through_the_body_that_it_is_not_in(tmp_path: Path) -> None:
    on = fleet(tmp_path)
    first, second = joined(on, "dume").kept
    assert (first.domains, second.domains) == (("d0", "d1"), ("d0", "d1", "d2"))
    assert (first.body, second.body) == (("d0", "d1"), ("d0", "d1"))
    assert second.oracles["d0"] != first.oracles["d0"]  # the head is that of all three
    body = body_file([domain.expert for domain in on.domains[:2]], tmp_path / "body")
    domain, held = on.domains[2], measured(on)["d2"].held_out
    model = domain_model(*on_body(domain.expert, body))[0]
    behind = score(with_average_head(model, [item.expert for item in on.domains]), held, Silent()).perplexity
    alone = score(
        domain_model(
            *on_body(domain.expert, body_file([domain.expert], tmp_path / "own")),
        )[0],
        held,
        Silent(),
    )
    assert second.oracles["d2"].mean == pytest.approx(100 * alone.perplexity / behind, rel=1e-4)


def test_under_a_kept_body_the_newcomer_alone_contributes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on, computed = fleet(tmp_path), list[tuple[str, Path]]()

    def counting(work: RouterPass, *given: Any) -> Any:
        computed.append((work.expert.folder.name, work.body.checkpoint.path))
        return windowed(work, *given)

    monkeypatch.setattr(contribution, "computed", counting)
    joined(on, "dume")
    kept = computed[0][1]
    assert [expert for expert, body in computed if body == kept] == ["expert-0", "expert-1", "expert-2"]
    assert len(computed) == 3 + 3


def test_newcomers_of_the_recommended_recipe_alone_are_fitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on, seen = fleet(tmp_path), list[str]()

    def counting(expert: DenseExpert, *given: Any) -> Any:
        seen.append(expert.folder.name)
        return fit(expert, *given)

    monkeypatch.setattr(assemble, "fit", counting)
    for recipe in ("recommended", "dume"):
        joined(on, recipe)
        assert seen == ["expert-2"]


def test_fitted_experts_join_with_every_seed(tmp_path: Path) -> None:
    result = joined(fleet(tmp_path), "recommended:fit=1", seeds=2)
    assert [version.domains for version in result.kept] == [("d0", "d1"), ("d0", "d1", "d2")]


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
    options = {**options_of(tmp_path), "tokens": 50, "context": 32}
    table("joined", **options, recipe=["dume", "dume:tokens=8"], json_file=out)
    result = json.loads(out.read_text())
    assert result["domains"] == ["d0", "d1", "d2"]
    assert [item["row"] for item in result["recipes"]] == ["dume", "dume:tokens=8"]
    for item in result["recipes"]:
        assert [remerge["body"] for remerge in item["remerges"]] == [["d0", "d1"]]
        by = {(*version["body"], "|", *version["domains"]): version["average"]["score"] for version in item["versions"]}
        gained = by["d0", "d1", "d2", "|", "d0", "d1", "d2"] - by["d0", "d1", "|", "d0", "d1", "d2"]
        assert item["remerges"][0]["gained"]["score"] == pytest.approx(gained)
    said = " ".join(capsys.readouterr().out.split())
    assert "1 d0, d1" in said
    assert "2 + d2" in said
    assert "dume: a remerge gains" in said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"recipe": ["averaging"]}, "--recipe averaging: makes no version with a body"),
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


Scores = Mapping[str, tuple[float, ...]]


def version(body: str, scores: Scores, oracles: Scores) -> Version:
    """Of domains that are letters."""
    figures, oracle = ({name: Figure(values) for name, values in item.items()} for item in (scores, oracles))
    return Version(tuple(body), figures, oracle)


JOINED = Joined(
    Run(*parse("dume")),
    [
        version("ab", {"a": (90, 92), "b": (80, 82)}, {"a": (92, 92), "b": (88, 88)}),
        version("ab", {"a": (89, 91), "b": (81, 83), "c": (60, 60)}, {"a": (92, 92), "b": (88, 88), "c": (63, 60)}),
        version(
            "ab",
            {"a": (89, 91), "b": (81, 83), "c": (60, 60), "d": (86, 86)},
            {"a": (92, 92), "b": (88, 88), "c": (63, 60), "d": (90, 90)},
        ),
    ],
    [
        version("abc", {"a": (86, 86), "b": (84, 84), "c": (88, 88)}, {"a": (90, 90), "b": (86, 86), "c": (89, 89)}),
        version("abcd", dict.fromkeys("abcd", (79.5, 80.5)), dict.fromkeys("abcd", (84.0, 84.0))),
    ],
)
"""The averages: 85 and 87; 230 / 3 and 78; 79 and 80. Merged anew: 86 for three, 79.5 and 80.5 for four."""


def test_kept_body_versions_are_compared_with_remerged_ones() -> None:
    assert [item.domains for item in JOINED.kept] == [("a", "b"), ("a", "b", "c"), ("a", "b", "c", "d")]
    assert [item.average.mean for item in JOINED.kept] == pytest.approx([86, (230 / 3 + 78) / 2, 79.5])
    one, two = JOINED.remerges
    assert (one.newcomers, two.newcomers) == (("c",), ("c", "d"))
    assert one.gains()["gained"].values == pytest.approx([86 - 230 / 3, 8])
    assert two.gains()["gained"].values == pytest.approx([0.5, 0.5])
    assert one.gains()["oracle_gained"].values == pytest.approx([265 / 3 - 81, 265 / 3 - 80])
    assert two.gains()["oracle_gained"].values == pytest.approx([84 - 83.25, 84 - 82.5])


def test_the_table_has_a_dash_for_domains_that_are_not_in_yet() -> None:
    table, conclusion = JOINED.render()
    assert isinstance(table, RichTable)
    columns = {str(column.header): list(column.cells) for column in table.columns}
    assert columns["version"] == ["1 a, b", "2 + c", "", "", "3 + d", "", ""]
    assert columns["body"] == ["merged", "kept", "remerged", "gain", "kept", "remerged", "gain"]
    assert columns["c"] == ["-", "60.0", "88.0", "+28.0", "60.0", "80.0", "+20.0"]
    assert columns["d"] == ["-", "-", "-", "-", "86.0", "80.0", "-6.0"]
    assert columns["average"][:4] == ["86.0 ± 1.4", "77.3 ± 0.9", "86.0 ± 0.0", "+8.7"]
    assert columns["oracle"][3] == "+7.8"
    assert conclusion == "dume: a remerge gains +8.7 at version 2 and +0.5 at version 3."
