"""The ridge system of a layer: gains, and room for the tokens."""

from pathlib import Path

import pytest
import torch

from moerge.errors import ContributionError
from moerge.routers.system import ridge_system
from moerge_proto.statistics_file import MAX_TOKENS, StatisticsFile
from support.statistics import honest_sums, manifest_of, written

HIDDEN = 12


def test_gains_are_multiplied_back_in(tmp_path: Path) -> None:
    """The system is that of x = w u: W^T W over u, scaled on both sides."""
    sums = honest_sums(HIDDEN, 40, 4, HIDDEN, 0)
    with StatisticsFile(written(tmp_path / "file", manifest_of(sums, 4), sums)) as file:
        plain = ridge_system([file], ["law"], 0, torch.ones(HIDDEN))
        gain = torch.linspace(-1, 2, HIDDEN)
        scaled = ridge_system([file], ["law"], 0, gain)
    weight = torch.diag(gain.double())
    torch.testing.assert_close(scaled[0], weight @ plain[0] @ weight)
    torch.testing.assert_close(scaled[1], weight @ plain[1])


def test_more_tokens_than_the_integers_have_room_for_are_refused(tmp_path: Path) -> None:
    sums = honest_sums(HIDDEN, 40, 4, HIDDEN, 0)
    manifest = manifest_of(sums, 4).model_copy(update={"tokens": MAX_TOKENS // 2 + 1})
    with StatisticsFile(written(tmp_path / "file", manifest, sums)) as file, pytest.raises(ContributionError):
        ridge_system([file, file], ["law"], 0, torch.ones(HIDDEN))
