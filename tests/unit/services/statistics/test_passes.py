"""Other devices, precisions and layouts of a pass give the sums of the plain one, within their rounding."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from moerge.models.batches import batches
from moerge.models.bounds import feature_bounds, feature_exponents, input_exponents
from moerge.models.config import read_config
from moerge.models.dense import expert_model
from moerge.models.families import FAMILIES, family_of
from moerge.models.reader import Checkpoint
from moerge.models.tokens import Tokens
from moerge.statistics.accumulate import ShardSums
from moerge.statistics.features import visit_features, visit_trunk_inputs
from moerge.statistics.integers import to_floats
from moerge.statistics.packed_attention import PACKED
from moerge.statistics.passes import RouterPass, TrunkPass
from moerge.statistics.validate import validate
from moerge_proto.statistics_file import StatisticsFile
from support.models import expert
from support.statistics import LAYERS, manifest_of, written

ROWS = [Tokens([(11 * row + 3 * column) % 256 for column in range(4 + 9 * row)]) for row in range(6)]
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


def both_passes(
    folder: Path, precision: str, device: str, layers: range | None = None
) -> list[tuple[ShardSums, list[int]]]:
    config, checkpoint = read_config(folder), Checkpoint(folder)
    family, weights = family_of(config), folder / "model.safetensors"
    router, trunk = feature_exponents(checkpoint, family, config), input_exponents(checkpoint, family, config)
    computes = (
        RouterPass(folder, weights, router, precision, device, layers).load(),
        TrunkPass(folder, trunk, precision, device, layers).load(),
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


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize(
    ("precision", "device"),
    [
        ("float32", "cpu"),
        pytest.param("float32", "cuda", marks=needs_gpu),
        pytest.param("bfloat16", "cuda", marks=needs_gpu),
    ],
)
def test_layers_that_are_summed_alone_have_the_integers_that_they_have_among_all(
    tmp_path: Path, family: str, precision: str, device: str
) -> None:
    folder = expert(tmp_path / "expert", 1, family, num_hidden_layers=LAYERS, head_dim=16)
    alone = [both_passes(folder, precision, device, range(layer, layer + 1)) for layer in range(LAYERS)]
    for place, (sums, _) in enumerate(both_passes(folder, precision, device)):
        found = {name: array for each in alone for name, array in each[place][0].arrays.items()}
        assert list(found) == list(sums.arrays)
        for name, array in sums.arrays.items():
            np.testing.assert_array_equal(found[name], array, err_msg=name)
        assert {(each[place][0].tokens, each[place][0].documents) for each in alone} == {(sums.tokens, sums.documents)}


def test_nothing_behind_the_last_layer_that_is_summed_is_computed(tmp_path: Path) -> None:
    model, computed = expert_model(expert(tmp_path / "expert", 1)), list[str]()
    for layer, module in enumerate(model.model.layers):
        for part in ("self_attn.o_proj", "mlp"):
            name = f"{layer}.{part}"
            module.get_submodule(part).register_forward_hook(lambda *_, name=name: computed.append(name))
    [batch] = batches(ROWS[:1], 150)
    visit_features(model, batch, lambda layer, x: None, range(1, 2))
    assert computed == ["0.self_attn.o_proj", "0.mlp", "1.self_attn.o_proj"]
    computed.clear()
    visit_trunk_inputs(model, FAMILIES["llama"], batch, lambda layer, x: None, range(1, 2))
    assert computed == ["0.self_attn.o_proj", "0.mlp"]


def test_bfloat16_sums_pass_the_coordinator_s_checks(tmp_path: Path) -> None:
    folder = expert(tmp_path / "expert", 1, num_hidden_layers=LAYERS)
    config, checkpoint = read_config(folder), Checkpoint(folder)
    [(sums, exponents), _] = both_passes(folder, "bfloat16", "cpu")
    with StatisticsFile(written(tmp_path / "file", manifest_of(sums, 1), sums)) as file:
        assert validate(file, exponents, feature_bounds(checkpoint, family_of(config), config)) == []
