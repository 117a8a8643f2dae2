"""A version's tensors, read layer by layer, are the parameters of its stock class."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from moerge.errors import CheckpointError
from moerge.models.families.family import EMBEDDING, HEAD
from moerge.models.published import published_weights
from moerge.models.weights import head_name, own_copy
from moerge.statistics.decoder import Decoder, LayerFiles
from support.models import DISTINCT, expert
from support.versions import loaded, published


@pytest.mark.parametrize(
    ("family", "tied"),
    [(name, tied) for name in DISTINCT for tied in (False, True) if (name, tied) != ("nemotron_h", True)],
)
def test_they_are_those_that_stock_transformers_loads(tmp_path: Path, family: str, tied: bool) -> None:
    experts = [expert(tmp_path / str(seed), seed, family, tie_word_embeddings=True) for seed in (1, 2, 3)]
    version = published(experts, tmp_path, tied=tied)
    weights, model = published_weights(version), loaded(version)
    stock = {**model.state_dict(), EMBEDDING: model.get_input_embeddings().weight}
    names = [name for layer in range(3) for name in weights.layer(layer)]
    assert sorted(names) == sorted(name for name in stock if ".layers." in name)
    for name in (*names, EMBEDDING, weights.final_norm):
        assert torch.equal(weights.tensor(name), stock[name]), name
        assert torch.equal(own_copy(weights, name, torch.bfloat16), stock[name].bfloat16()), name
    assert head_name(weights) == (EMBEDDING if tied else HEAD)


def test_a_missing_router_is_refused(tmp_path: Path) -> None:
    """Stock transformers only warns, and draws a random one."""
    weights = published_weights(published([expert(tmp_path / str(seed), seed) for seed in (1, 2)], tmp_path))
    router = "model.layers.1.mlp.gate.weight"
    cut = replace(weights, plain={name: stored for name, stored in weights.plain.items() if name != router})
    cpu, single = torch.device("cpu"), torch.float32
    decoder, files = Decoder(cut, single, cpu), LayerFiles(cut, single, cpu)
    decoder.hold(0, files.layer(0))
    with pytest.raises(CheckpointError, match="tensor not found") as caught:
        decoder.hold(1, files.layer(1))
    assert caught.value.where == router
