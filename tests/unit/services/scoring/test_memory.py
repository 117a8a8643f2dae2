"""The memory of scoring, and the hidden states that it has room for."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from moerge.errors import MoergeError
from moerge.models.config import read_config
from moerge.models.dense import expert_weights
from moerge.models.families import FAMILIES
from moerge.models.published import published_weights
from moerge.scoring.memory import room_for_states, scoring_need, version_config
from moerge.scoring.perplexity import BATCH_TOKENS
from moerge.statistics.memory import Free
from support.models import expert
from support.peaks import peak_of
from support.versions import published

H, INNER, VOCAB = 32, 48, 300


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_version_s_need_is_known_before_its_files_are_here(tmp_path: Path, family: str) -> None:
    experts = [expert(tmp_path / str(seed), seed, family) for seed in (1, 2, 3)]
    weights = published_weights(published(experts, tmp_path, 2))
    before = version_config(read_config(experts[0]), 3, 2)
    found = scoring_need(before, torch.float32, 512)
    assert found == scoring_need(weights.config, torch.float32, 512)
    assert found.weights == 2 * sum(4 * weights.tensor(name).numel() for name in weights.layer(0))


def test_a_dense_model_needs_two_layers_or_the_head_and_logits(tmp_path: Path) -> None:
    weights = expert_weights(expert(tmp_path / "expert", 1))
    need = scoring_need(weights.config, torch.bfloat16, 512)
    assert need.weights == 2 * 2 * (2 * H * H + 2 * 16 * H + 3 * H * INNER + 2 * H)
    assert need.head == 2 * (VOCAB + BATCH_TOKENS) * H + (2 + 4) * BATCH_TOKENS * VOCAB + 8 * 512 * VOCAB
    assert need.least == 2 * H * BATCH_TOKENS
    assert need.device == need.weights + max(need.batch, need.head)


def test_hidden_states_have_half_of_the_memory_that_nothing_else_needs(tmp_path: Path) -> None:
    need = scoring_need(read_config(expert(tmp_path / "expert", 1)), torch.float32, 512)
    free = Free(need.device + 10 * need.least, None)
    assert room_for_states(need, free) == 5 * need.least
    assert room_for_states(need, free, 2 * need.least) == 2 * need.least
    assert room_for_states(need, free, 1) == need.least
    assert room_for_states(need, Free(10 * need.least, need.device)) == 5 * need.least
    assert room_for_states(need, Free(need.device + need.least, None)) == need.least
    for short in (Free(need.device + need.least - 1, None), Free(10 * need.least, need.device - 1)):
        with pytest.raises(MoergeError, match=r"scoring needs .* \(two layers .* head and logits"):
            room_for_states(need, short)
    assert room_for_states(replace(need, least=1), Free(None, None)) > 0


SCORE = """
from moerge.models.published import published_weights
from moerge.models.tokens import Tokens
from moerge.progress import NoProgress
from moerge.scoring.memory import streamed_model
from moerge.scoring.perplexity import windows
def call(version):
    model = streamed_model(published_weights(version), "float32", "cpu", 64)
    model.score(windows([Tokens([1, 2, 3, 4] * 16)], 64, 32), NoProgress())
"""


def test_the_peak_is_that_of_layers_and_not_of_the_model(tmp_path: Path) -> None:
    """A version of 16 layers and two experts has 170 MB."""
    sizes: dict[str, Any] = {"hidden_size": 512, "intermediate_size": 512, "num_hidden_layers": 16}
    version = published([expert(tmp_path / "expert", 1, **sizes)] * 2, tmp_path, rows=[[[1, 2, 3]]] * 2)
    weights = published_weights(version)
    whole = sum(each.bytes for each in weights.checkpoint.specs.values())
    two = scoring_need(weights.config, torch.float32, 64).weights
    found = peak_of(SCORE, version)
    assert found < two + 2**25 < whole / 2
