"""The documents of a fit: as many tokens as memory has room for."""

from pathlib import Path

import pytest

from moerge.documents.fitting_sample import fitting_tokens
from moerge.errors import MoergeError
from moerge.fits.fitted_files import fitted_bytes
from moerge.fits.parts import write_parts
from moerge.fits.sample import fitting_sample_that_fits, least_fitting_tokens, need_of, threads_that_fit
from moerge.memory.machine import Free
from moerge.models.batches import batches
from moerge.models.expert_folder import DenseExpert
from moerge.models.reader import Checkpoint
from moerge.models.tokens import Tokens
from moerge_proto.statistics_file import StatisticsSettings
from support.models import expert

SETTINGS = StatisticsSettings(context=32, batch_tokens=1024)
H, INNER = 32, 48


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> DenseExpert:
    return DenseExpert("law", expert(tmp_path_factory.mktemp("own") / "expert", 1))


def sample(tokens: int) -> list[list[Tokens]]:
    """Documents of 32 tokens, of which the first 16 don't count; there are enough for any fit."""
    one = [Tokens(range(32), [False] * 16 + [True] * 16)]
    return [one] * -(-tokens // 16)


def chosen(own: DenseExpert, free: Free, least: int = 0) -> tuple[int, list[str]]:
    """The number of chosen tokens, and the messages."""
    messages = list[str]()
    device = "cpu" if free.device is None else "cuda"
    documents, cut = fitting_sample_that_fits(own, SETTINGS, sample, device, free, messages.append, least)
    tokens = sum(row.count for rows in documents for row in rows)
    assert sum(int(batch.counted.sum()) for batch in cut) == tokens
    return tokens, messages


def test_a_fit_writes_the_expert_s_parts_and_its_mlps(own: DenseExpert, tmp_path: Path) -> None:
    parts = Checkpoint(write_parts(own, tmp_path / "parts"))
    assert fitted_bytes(own) == sum(spec.bytes for spec in parts.specs.values()) + 3 * 3 * 4 * H * INNER


def test_as_many_tokens_as_fit_are_chosen(own: DenseExpert) -> None:
    """Every second token doesn't count."""
    need, on_gpu = (need_of(own, SETTINGS, device) for device in ("cpu", "cuda"))
    most, least = fitting_tokens(H), least_fitting_tokens(H)
    assert chosen(own, Free(None, None)) == (most, [])
    assert chosen(own, Free(need.total(2 * most), None)) == (most, [])
    tokens, [messages] = chosen(own, Free(need.total(most), None))
    assert tokens == most // 2
    assert messages == f"fitting to {most // 2:,} tokens instead of {most:,}, because memory is short"
    assert least == most // 4
    assert chosen(own, Free(need.total(2 * least), None))[0] == least
    assert chosen(own, Free(on_gpu.in_host + 2 * most * on_gpu.token, on_gpu.on_device)) == (most, [])


@pytest.mark.parametrize("least", [0, 30_000])
def test_less_than_the_least_tokens_are_refused(own: DenseExpert, least: int) -> None:
    need = need_of(own, SETTINGS, "cpu")
    tokens = max(least, least_fitting_tokens(H))
    for free in (Free(need.total(2 * tokens - 64), None), Free(2 * tokens * need.token, need.on_device - 1)):
        with pytest.raises(MoergeError, match=rf"fitting MLPs needs .* states of {tokens:,} tokens.* has") as caught:
            chosen(own, free, least)
        assert "no fit" in caught.value.todo


def test_as_many_threads_as_fit_beside_the_residuals(own: DenseExpert) -> None:
    rows = [row for document in sample(1024) for row in document]
    cut = list(batches(rows, SETTINGS.batch_tokens))
    host = {threads: need_of(own, SETTINGS, "cpu", threads).total(2 * 1024) for threads in (1, 2)}

    def threads(free: int | None, device: str = "cpu", most: int = 8) -> int:
        return threads_that_fit(own, SETTINGS, cut, device, Free(free, None), most)

    assert [threads(free) for free in (0, host[2] - 1, host[2], None)] == [1, 1, 2, len(cut)]
    assert (threads(None, most=1), threads(None, "cuda")) == (1, 1)
