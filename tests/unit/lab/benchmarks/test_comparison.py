"""Versions are compared with experts on the same questions."""

import statistics
from collections.abc import Sequence
from pathlib import Path

import pytest

from moerge_lab.benchmarks.comparison import Difference, Row, Score, best_expert, standard_error
from moerge_lab.benchmarks.models import Model
from moerge_lab.benchmarks.table import Comparison
from moerge_proto.evaluations import TaskResult

RIGHT, WRONG = [1.0] * 30 + [0.0] * 10, [1.0] * 10 + [0.0] * 30


def score(values: Sequence[float]) -> Score:
    mean = statistics.fmean(values)
    result = TaskResult(
        task="piqa", metric="acc", value=mean, standard_error=standard_error(values), questions=len(values), seed=0,
        harness="lm_eval 0.4.13",
    )  # fmt: skip
    return Score(result, values)


def row(*, chosen: bool = True, **values: Sequence[float]) -> Row:
    scores = {name: score(answers) for name, answers in values.items()}
    return Row("piqa", 0.25, "law", chosen, scores, "seed" if "seed" in values else None)


def test_the_error_is_that_of_a_mean() -> None:
    assert standard_error(RIGHT) == pytest.approx(statistics.stdev(RIGHT) / 40**0.5)
    assert standard_error([1.0]) is None


def test_equal_answers_have_no_error() -> None:
    assert Difference.between(score(RIGHT), score(RIGHT)) == Difference(100, 0, 0, 0)


def test_differences_are_of_pairs() -> None:
    one, other = [1.0, 0.0, 1.0, 1.0], [1.0, 1.0, 1.0, 0.0]
    found = Difference.between(score(one), score(other))
    assert (found.normalised, found.difference) == (100, 0)
    assert found.difference_error == pytest.approx(statistics.stdev([0, -1, 0, 1]) / 2)
    half = Difference.between(score(WRONG), score(RIGHT))
    assert half.normalised == pytest.approx(100 / 3)
    left = [one - other / 3 for one, other in zip(WRONG, RIGHT, strict=True)]
    assert half.normalised_error == pytest.approx(100 * statistics.stdev(left) / 40**0.5 / 0.75)


def test_an_average_is_over_tasks() -> None:
    found = Difference.average([Difference(90, 3, -0.1, 0.03), Difference(110, 4, 0.3, 0.04)])
    assert found is not None
    assert [found.normalised, found.normalised_error] == pytest.approx([100, 2.5])
    assert [found.difference, found.difference_error] == pytest.approx([0.1, 0.025])
    assert Difference.average([]) is None


def test_a_task_at_chance_says_nothing() -> None:
    assert row(seed=WRONG, law=WRONG, merged=RIGHT).says_nothing
    assert row(law=WRONG, merged=RIGHT).says_nothing
    only_seed = row(seed=WRONG, law=RIGHT, merged=RIGHT)
    assert only_seed.seed_at_chance
    assert not only_seed.says_nothing
    assert not row(seed=RIGHT, law=RIGHT, merged=WRONG).says_nothing


def test_the_table_leaves_such_a_task_out_of_the_averages() -> None:
    names = (("seed", "seed"), ("law", "expert"), ("merged", "version"))
    models = [Model(name, role, Path(name)) for name, role in names]  # type: ignore[arg-type]
    rows = [row(seed=RIGHT, law=RIGHT, merged=RIGHT), row(seed=WRONG, law=WRONG, merged=RIGHT, chosen=False)]
    table = Comparison(models, rows, "out")
    assert table.average("merged") == Difference(100, 0, 0, 0)
    assert table.notes == [
        "piqa says nothing: seed and expert are at chance; it isn't in the averages",
        "piqa: law is the best expert of the row; name it, as in piqa=law",
    ]
    shown = table.to_json()["tasks"]
    assert isinstance(shown, list)
    assert [item["versions"]["merged"] is None for item in shown] == [False, True]


def test_the_best_expert_of_a_row() -> None:
    assert best_expert(["code", "law"], {"code": score(WRONG), "law": score(RIGHT)}) == "law"
