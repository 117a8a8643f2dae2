"""Other devices, precisions and layouts of a pass give the sums of the plain one, within their rounding."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from moerge.architectures.config import read_config
from moerge.architectures.families import FAMILIES, family_of
from moerge.checkpoint.reader import Checkpoint
from moerge.statistics.accumulate import ShardSums
from moerge.statistics.bounds import feature_bounds, feature_exponents, input_exponents
from moerge.statistics.features import visit_features
from moerge.statistics.fixed_point import to_floats
from moerge.statistics.packed import PACKED
from moerge.statistics.passes import RouterPass, TrunkPass
from moerge.statistics.validate import validate
from moerge.trunk.domain_model import expert_model
from moerge_proto.statistics_file import StatisticsFile
from moerge_workers.shards import batches
from support.models import expert
from support.statistics import LAYERS, manifest_of, written

ROWS = [[(11 * row + 3 * column) % 256 for column in range(4 + 9 * row)] for row in range(6)]
KINDS: list[tuple[str, dict[str, object]]] = [
    *[(family, {}) for family in sorted(FAMILIES)],
    ("mistral", {"sliding_window": 8}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
]
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def features(folder: Path, *, packed: bool) -> list[Tensor]:
    model = expert_model(folder)
    if packed:
        model.set_attn_implementation(PACKED)
    seen: list[list[Tensor]] = [[] for _ in range(model.config.num_hidden_layers)]
    for batch in batches(ROWS, 150):
        visit_features(model, batch, lambda layer, x: seen[layer].append(x))
    return [torch.cat(each) for each in seen]


@pytest.mark.parametrize(("family", "settings"), KINDS)
def test_packed_documents_don_t_see_each_other(tmp_path: Path, family: str, settings: dict[str, object]) -> None:
    folder = expert(tmp_path / "expert", 1, family, **settings)
    for plain, packed in zip(features(folder, packed=False), features(folder, packed=True), strict=True):
        torch.testing.assert_close(packed, plain, atol=2e-5, rtol=0)


def require_alike(found: ShardSums, expected: ShardSums, exponents: list[int], tolerance: float) -> None:
    """Relative to the size of each sum as a whole."""
    for place, (name, array) in enumerate(expected.arrays.items()):
        if name == "token_counts":
            np.testing.assert_array_equal(found.arrays[name], array)
            continue
        exponent = exponents[place if len(exponents) > LAYERS else place // 2]
        left, right = to_floats(found.arrays[name], exponent), to_floats(array, exponent)
        assert np.linalg.norm(left - right) < tolerance * np.linalg.norm(right), name


def both_passes(folder: Path, precision: str, device: str) -> list[tuple[ShardSums, list[int]]]:
    config, checkpoint = read_config(folder), Checkpoint(folder)
    family, weights = family_of(config), folder / "model.safetensors"
    router, trunk = feature_exponents(checkpoint, family, config), input_exponents(checkpoint, family, config)
    computes = (
        RouterPass(folder, weights, router, precision, device).load(),
        TrunkPass(folder, trunk, precision, device).load(),
    )
    return [
        (compute(batches(ROWS, 150), len(ROWS)), exponents)
        for compute, exponents in zip(computes, (router, trunk), strict=True)
    ]


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize(
    ("precision", "device", "tolerance"),
    [
        ("bfloat16", "cpu", 0.02),
        pytest.param("float32", "cuda", 1e-4, marks=needs_gpu),
        pytest.param("bfloat16", "cuda", 0.02, marks=needs_gpu),
    ],
)
def test_sums_agree_with_float32_on_the_processor(
    tmp_path: Path, family: str, precision: str, device: str, tolerance: float
) -> None:
    folder = expert(tmp_path / "expert", 1, family, num_hidden_layers=LAYERS, head_dim=16)
    pairs = zip(both_passes(folder, precision, device), both_passes(folder, "float32", "cpu"), strict=True)
    for (found, exponents), (expected, _) in pairs:
        require_alike(found, expected, exponents, tolerance)


def test_bfloat16_sums_pass_the_coordinator_s_checks(tmp_path: Path) -> None:
    folder = expert(tmp_path / "expert", 1, num_hidden_layers=LAYERS)
    config, checkpoint = read_config(folder), Checkpoint(folder)
    [(sums, exponents), _] = both_passes(folder, "bfloat16", "cpu")
    with StatisticsFile(written(tmp_path / "file", manifest_of(sums, 1), sums)) as file:
        assert validate(file, exponents, feature_bounds(checkpoint, family_of(config), config)) == []
