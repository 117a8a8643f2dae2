"""Perplexity, the paper's normalisation, and routing counts."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from moerge.models.tokens import Tokens, all_counted
from moerge.progress import LogProgress
from moerge.scoring.perplexity import Score, score, total, windows
from moerge.scoring.routers import RoutingCounter, forced
from moerge_lab.recipes.published import VERSION, version_recipe
from moerge_lab.recipes.registry import RECIPES, parse
from moerge_lab.table.measure import Settings, Texts, measure
from moerge_lab.table.table import Result, Row, Run, Table
from support.models import expert
from support.progress import Silent
from support.versions import ROWS, published


@given(
    lengths=st.lists(st.integers(0, 60), max_size=5),
    context=st.integers(2, 20),
    stride=st.integers(1, 19),
    data=st.data(),
)
def test_every_token_but_a_document_s_first_is_scored_once(
    lengths: list[int], context: int, stride: int, data: st.DataObject
) -> None:
    stride = min(stride, context - 1)
    documents = [list(range(1000 * number, 1000 * number + length)) for number, length in enumerate(lengths)]
    cut = windows(all_counted(documents), context, stride)
    scored = [token for window in cut for token in window.tokens.ids[len(window.tokens) - window.new :]]
    assert sorted(scored) == sorted(token for document in documents for token in document[1:])
    for window in cut:
        known = len(window.tokens) - window.new
        first = window.tokens.ids[known]
        assert known >= min(first % 1000, context - stride)
        assert len(window.tokens) <= context


@pytest.mark.parametrize(("context", "stride"), [(8, 8), (8, 0), (1, 1)])
def test_strides_that_leave_tokens_without_context_are_refused(context: int, stride: int) -> None:
    with pytest.raises(ValueError, match="stride"):
        windows([Tokens([1, 2, 3])], context, stride)


def test_a_score_is_the_cross_entropy_of_each_document_alone(tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(expert(tmp_path, seed=1), dtype=torch.float32)
    documents = [ROWS[0], ROWS[1][:7], ROWS[2][:2], [9]]
    result = score(model, windows(all_counted(documents), 64, 32), Silent())
    expected = 0.0
    for document in documents[:3]:
        ids = torch.tensor([document])
        expected += float(model(ids, labels=ids).loss.detach()) * (len(document) - 1)
    assert result.tokens == 39 + 6 + 1
    assert result.nll == pytest.approx(expected, rel=1e-5)
    assert result.perplexity == pytest.approx(math.exp(expected / 46), rel=1e-5)


def test_first_choice_is_counted_once_per_scored_token(tmp_path: Path) -> None:
    experts = [expert(tmp_path / str(seed), seed=seed) for seed in (1, 2)]
    model = AutoModelForCausalLM.from_pretrained(published(experts, tmp_path), dtype=torch.float32)
    cut = windows(all_counted([ROWS[0], ROWS[1][:3]]), 16, 8)
    counter = RoutingCounter(model)
    with counter.counting():
        score(model, cut, Silent(), [counter.count])
    assert counter.counts.sum(dim=1).tolist() == [41] * 3
    forced_counter = RoutingCounter(model)
    with forced(model, 1), forced_counter.counting():
        score(model, cut, Silent(), [forced_counter.count])
    assert forced_counter.counts.tolist() == [[0, 41]] * 3


def test_uncounted_tokens_are_read_but_not_scored(tmp_path: Path) -> None:
    experts = [expert(tmp_path / str(seed), seed=seed) for seed in (1, 2)]
    model = AutoModelForCausalLM.from_pretrained(published(experts, tmp_path), dtype=torch.float32)
    marked = Tokens(ROWS[0], [False] * 30 + [True] * 10)
    result, counter = {}, RoutingCounter(model)
    for name, ids in {"all": ROWS[0], "first": ROWS[0][:30]}.items():
        result[name] = score(model, windows([Tokens(ids)], 64, 32), Silent())
    with counter.counting():
        last = score(model, windows([marked], 64, 32), Silent(), [counter.count])
    assert last.tokens == 10
    assert last.nll == pytest.approx(result["all"].nll - result["first"].nll, rel=1e-5)
    assert counter.counts.sum(dim=1).tolist() == [10] * 3


def test_text_outside_domains_is_scored_against_the_seed(tmp_path: Path) -> None:
    """A dense expert that is the seed has 100; an oracle knows no domain of it."""
    seed, other = (expert(tmp_path / str(number), seed=number) for number in (1, 2))
    cut = windows(all_counted(ROWS[:2]), 32, 16)
    domains = {"law": Texts(seed, cut, ROWS), "art": Texts(other, cut, ROWS)}
    elsewhere = windows(all_counted(ROWS[2:4]), 32, 16)
    runs = [Run(*parse(name)) for name in ("experts", "averaging", "random", "oracle")]
    table = measure(runs, domains, Settings(seed), LogProgress(), elsewhere)
    result = {item.name: table.elsewhere(item) for item in table.rows}
    mean = table.row("averaging").results[0].elsewhere
    base = score(AutoModelForCausalLM.from_pretrained(seed, dtype=torch.float32), elsewhere, Silent())
    assert result["law expert"] is not None
    assert (result["law expert"].mean, result["law expert"].error) == (100, 0)
    assert result["averaging"] is not None
    assert result["averaging"].mean == pytest.approx(100 * base.perplexity / total(mean).perplexity)
    assert result["oracle"] is None
    assert table.average(table.row("law expert")).mean < 100
    record: dict[str, Any] = json.loads(json.dumps(table.to_json()))
    assert record["elsewhere"] == {"tokens": sum(len(item) - 1 for item in ROWS[2:4]), "documents": 2}
    assert [item.get("elsewhere", {}).get("score") is None for item in record["averages"]] == [False] * 4 + [True]
    assert "100 = the seed model" in table.scored()


def row(name: str, *scores: Mapping[str, Sequence[Score]]) -> Row:
    return Row(Run(RECIPES["dume"], {}, name), name, [Result(item, 1e6, 1.0) for item in scores])


def test_the_normalised_table_follows_the_paper_s_formula() -> None:
    """100 x the dense expert's perplexity / the row's; e^1 over e^2 is 36.8, e^1 over e^0.5 is 164.9."""
    dense = {"law": [Score(4.0, 5), Score(6.0, 5)], "art": [Score(20.0, 20)]}
    other = {"law": [Score(15.0, 5), Score(5.0, 5)], "art": [Score(10.0, 20)]}
    rows = [row("law expert", dense), row("art expert", dense), row("dume", other)]
    table = Table(("law", "art"), rows)
    assert table.normalised(rows[0], "law").mean == table.normalised(rows[1], "art").mean == pytest.approx(100.0)
    assert table.normalised(rows[2], "law").mean == pytest.approx(100 * math.exp(-1))
    assert table.normalised(rows[2], "art").mean == pytest.approx(100 * math.exp(0.5))
    assert table.average(rows[2]).mean == pytest.approx(50 * (math.exp(-1) + math.exp(0.5)))


def test_errors_are_over_documents_and_paired_for_differences() -> None:
    """50 documents of 10 tokens: the gains are 0 or 0.4 nats a token, so a score of about 82 has the error
    82 x 0.2 / sqrt 50. Another row that gains 0.01 nats everywhere has as large an error, and hardly one of the
    difference. Two domains with independent documents halve the variance."""
    dense = {name: [Score(20.0, 10)] * 50 for name in ("law", "art")}
    model = {name: [Score(20.0 + 4 * (number % 2), 10) for number in range(50)] for name in dense}
    better = {name: [Score(item.nll - 0.1, 10) for item in scores] for name, scores in model.items()}
    rows = [
        row(name, item)
        for name, item in zip(("law expert", "art expert", "dume", "x"), (dense, dense, model, better), strict=True)
    ]
    table = Table(("law", "art"), rows, against="dume")
    score = 100 * math.exp(-0.2)
    cell, average, difference = table.normalised(rows[2], "law"), table.average(rows[2]), table.difference(rows[3])
    assert cell.error == pytest.approx(score * 0.2 / math.sqrt(50), rel=0.1)
    assert average.error == pytest.approx(score * 0.2 / math.sqrt(100), rel=0.1)
    assert difference is not None
    assert average.error is not None
    assert difference.mean == pytest.approx(score * (math.exp(0.01) - 1))
    assert difference.error == pytest.approx(average.error * (math.exp(0.01) - 1))
    assert table.normalised(rows[0], "law").error == 0
    assert table.difference(rows[2]) is None
    result: dict[str, Any] = json.loads(json.dumps(table.to_json()))
    assert (result["documents"], result["against"]) == ({"law": 50, "art": 50}, "dume")
    assert result["averages"][3]["difference_error"] == pytest.approx(difference.error)


def test_errors_over_seeds_are_added_in_quadrature() -> None:
    """The deviation over two seeds, divided by sqrt 2, and that over documents in quadrature."""
    dense = {"law": [Score(20.0, 10)] * 20}
    seeds = [{"law": [Score(20.0 + seed + number % 2, 10) for number in range(20)]} for seed in (0, 1)]
    rows = [row("law expert", dense), row("dume", *seeds)]
    result = Table(("law",), rows).average(rows[1])
    assert result.error == pytest.approx(math.hypot(result.resamples.std(ddof=1), result.deviation / math.sqrt(2)))
    alone = [row("law expert", {"law": [Score(20.0, 10)]}), row("dume", {"law": [Score(21.0, 10)]})]
    assert Table(("law",), alone).average(alone[1]).error is None
    assert str(Table(("law",), alone).average(alone[1])) == "90.5"


def test_figures_over_seeds_are_mean_and_sample_deviation() -> None:
    """Averages 36.8 and 100 have the mean 68.4 and the deviation (100 - 36.8) / sqrt 2."""
    dense, other = {"law": [Score(10.0, 10)]}, {"law": [Score(20.0, 10)]}
    table = Table(("law",), [row("law expert", dense), row("dume", dense, other)])
    low, [record, figures] = 100 * math.exp(-1), json.loads(json.dumps(table.to_json()))["records"]
    assert record["deviation"] == 0
    assert figures["score"] == pytest.approx(50 + low / 2)
    assert figures["deviation"] == pytest.approx((100 - low) / math.sqrt(2))
    assert figures["scores"] == pytest.approx([100, low])
    assert figures["perplexity"] == pytest.approx((math.e + math.e**2) / 2)
    assert (figures["domain"], figures["seeds"], figures["active_parameters"]) == ("law", 2, 1e6)


def test_the_table_of_equal_experts_is_100_everywhere(tmp_path: Path) -> None:
    dense = expert(tmp_path / "dense", seed=1)
    domains = {name: Texts(dense, windows(all_counted(ROWS[:2]), 32, 16), ROWS) for name in ("law", "art")}
    names = ["experts", "averaging", "weighted", "random", "oracle", "dume", "regmean", "regmean-oracle"]
    runs = [
        *(Run(*parse(name)) for name in names),
        Run(version_recipe(published([dense, dense], tmp_path), list(domains)), {}, VERSION),
    ]
    table = measure(runs, domains, Settings(), LogProgress())
    rows = ["law expert", "art expert", *names[1:], "random routing", "oracle", "version"]
    assert [row.name for row in table.rows] == rows
    for row in table.rows:
        assert [table.normalised(row, domain).mean for domain in domains] == pytest.approx([100.0, 100.0], abs=0.1)
    assert sum(table.row("version").shares()["law"]) == pytest.approx(1.0)
