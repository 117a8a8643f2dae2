"""The memory of a fit, and the tokens that it has room for."""

from pathlib import Path
from typing import Any

import pytest

from moerge.documents.fitting_sample import fitting_tokens
from moerge.errors import MoergeError
from moerge.experts.memory import fitting_disk, fitting_need, fitting_sample_that_fits, least_fitting_tokens
from moerge.models.expert_folder import DenseExpert
from moerge.models.tokens import Tokens
from moerge.statistics.memory import Free
from moerge_proto.statistics_file import StatisticsSettings
from support.models import expert
from support.peaks import peak_of
from support.versions import trunk_file

SETTINGS = StatisticsSettings(context=32, batch_tokens=1024)
H, INNER = 32, 48
LAYER = 4 * (2 * H * H + 2 * 16 * H + 3 * H * INNER + 2 * H)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> DenseExpert:
    return DenseExpert("law", expert(tmp_path_factory.mktemp("own") / "expert", 1))


def sample(tokens: int) -> list[list[Tokens]]:
    """Documents of 32 tokens, of which the first 16 don't count; there are enough for any fit."""
    one = [Tokens(range(32), [False] * 16 + [True] * 16)]
    return [one] * -(-tokens // 16)


def chosen(own: DenseExpert, free: Free, least: int = 0) -> tuple[int, list[str]]:
    """The number of chosen tokens, and the messages."""
    said = list[str]()
    documents, cut = fitting_sample_that_fits(own, SETTINGS, sample, free, said.append, least)
    tokens = sum(row.count for rows in documents for row in rows)
    assert sum(int(batch.counted.sum()) for batch in cut) == tokens
    return tokens, said


def test_a_fit_needs_two_layers_of_both_models_a_solve_and_two_residuals_a_token(own: DenseExpert) -> None:
    need = fitting_need(own, SETTINGS)
    assert need.weights == 4 * LAYER
    assert need.solve == max(16 * INNER**2 + 32 * INNER * H, 16 * 300 * H + 48 * H**2)
    assert need.token == 2 * 4 * H
    assert need.host(1000) == need.device + 1000 * need.token
    assert need.host(1000, on_gpu=True) == 1000 * need.token
    assert fitting_disk(own) == sum(each.bytes for each in own.checkpoint.specs.values()) + 3 * 3 * 4 * H * INNER


def test_as_many_tokens_as_fit_are_chosen_and_half_of_them_are_read_only(own: DenseExpert) -> None:
    need, most = fitting_need(own, SETTINGS), fitting_tokens(H)
    assert chosen(own, Free(None, None)) == (most, [])
    assert chosen(own, Free(need.host(2 * most), None)) == (most, [])
    found, [said] = chosen(own, Free(need.host(most), None))  # every second token doesn't count
    assert found == most // 2
    assert said == f"fitting to {most // 2:,} tokens instead of {most:,}, because memory is short"
    least = least_fitting_tokens(H)
    assert least == most // 4
    assert chosen(own, Free(need.host(2 * least), None))[0] == least
    assert chosen(own, Free(need.host(2 * most, on_gpu=True), need.device)) == (most, [])


@pytest.mark.parametrize("least", [0, 30_000])
def test_below_the_least_it_is_refused_with_the_memory_that_it_needs(own: DenseExpert, least: int) -> None:
    need = fitting_need(own, SETTINGS)
    asked = max(least, least_fitting_tokens(H))
    for free in (Free(need.host(2 * asked - 64), None), Free(need.host(2 * asked, on_gpu=True), need.device - 1)):
        with pytest.raises(MoergeError, match=rf"fitting needs .* residuals of {asked:,} tokens .* are free") as caught:
            chosen(own, free, least)
        assert "without --fit" in caught.value.todo


FIT = """
from tempfile import mkdtemp
from moerge.experts.fitting import fit
from moerge.models.batches import batches
from moerge.models.tokens import all_counted
def call(folder, trunk, place):
    fit(folder, trunk, list(batches(all_counted([range(64)] * 2), 128)), Path(mkdtemp(dir=place)))
"""


def test_the_peak_is_that_of_layers_and_not_of_models(tmp_path: Path) -> None:
    """Two models of 20 layers have 250 MB."""
    sizes: dict[str, Any] = {"hidden_size": 512, "intermediate_size": 512, "num_hidden_layers": 20}
    folder = expert(tmp_path / "expert", 1, **sizes)
    trunk, own = trunk_file([folder], tmp_path / "trunk"), DenseExpert("law", folder)
    need = fitting_need(own, StatisticsSettings(context=64, batch_tokens=128))
    whole = 2 * sum(each.bytes for each in own.checkpoint.specs.values())
    found = peak_of(FIT, folder, trunk, tmp_path)
    assert found < need.host(128) + 2**25 < whole / 3
