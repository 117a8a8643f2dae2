"""Needs by the sizes of a model; docs/performance.md has the same figures."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.filesize import decimal
from transformers import LlamaConfig

from moerge.bodies.methods.registry import METHODS
from moerge.memory.needs import SUM_ROWS, Need, fitting, merging, merging_head, passing, scoring, writing_texts
from moerge.memory.shapes import Shape
from moerge.models.config import read_config
from moerge.models.families.registry import FAMILIES
from moerge.models.published import expected_config, published_weights
from moerge.models.reader import Checkpoint
from support.models import allowed, expert
from support.sizes import preset
from support.versions import published

PAGE = Path(__file__).parents[4] / "docs" / "performance.md"
ROWS = re.findall(r"^\| (8B|70B) \| (body|router) \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
H, INNER, VOCAB = 32, 48, 300
LAYER = 2 * H * H + 2 * 16 * H + 3 * H * INNER + 2 * H


def small(dtype: torch.dtype = torch.float32) -> Shape:
    sizes: dict[str, Any] = {"hidden_size": H, "intermediate_size": INNER, "vocab_size": VOCAB, "num_hidden_layers": 3}
    return Shape.of(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2), dtype)


@pytest.mark.parametrize(("name", "kind", "row"), ROWS)
def test_the_page_has_the_memory_of_a_pass(name: str, kind: str, row: str) -> None:
    need = passing(Shape.of(preset(name.lower()), torch.bfloat16), 2048, body=kind == "body", device="cuda")
    sizes = (*need.device.values(), need.on_device, need.in_host, need.journal, need.token, need.least)
    assert row.split(" | ") == [decimal(size) for size in sizes]


def test_the_page_has_both_passes_of_both_models() -> None:
    assert [(name, kind) for name, kind, _ in ROWS] == [
        (name, kind) for name in ("8B", "70B") for kind in ("body", "router")
    ]


def test_a_pass_needs_sums_and_a_micro_batch_for_each_thread() -> None:
    one, four = (passing(small(), 2048, body=True, threads=threads) for threads in (1, 4))
    assert one.device["two layers"] == four.device["two layers"] == 2 * 4 * LAYER
    assert four.device["sums"] == 2 * one.device["sums"]
    assert four.device["a micro-batch"] == 4 * one.device["a micro-batch"]
    assert four.host == one.host
    assert one.least == 64 * H * one.token == 64 * H * 4 * H


def test_on_a_gpu_host_memory_has_pinned_copies_alone() -> None:
    cpu, gpu = (passing(small(), 2048, body=False, device=device) for device in ("cpu", "cuda"))
    assert gpu.on_device == sum(cpu.device.values()) + 4 * 2048 * 4 * H
    assert gpu.in_host == cpu.host["integers"] + 2 * 8192 + 2 * 8192


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_shape_has_the_parameters_of_the_files(tmp_path: Path, family: str) -> None:
    config = read_config(expert(tmp_path / "expert", 1, family))
    size = sum(torch.Size(spec.shape).numel() for spec in Checkpoint(tmp_path / "expert").specs.values())
    assert Shape.of(config, torch.float32).expert == size


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_version_s_need_is_known_before_its_files(tmp_path: Path, family: str) -> None:
    experts, top_k = [expert(tmp_path / str(seed), seed, family) for seed in (1, 2, 3)], allowed(family)[-1]
    weights = published_weights(published(experts, tmp_path, top_k))
    need = scoring(expected_config(read_config(experts[0]), 3, top_k), torch.float32, 4096, 512)
    assert need == scoring(weights.config, torch.float32, 4096, 512)
    layers = [sum(4 * weights.tensor(name).numel() for name in weights.layer(layer)) for layer in range(3)]
    assert need.device["two layers"] == 2 * max(layers)


def test_scoring_needs_two_layers_and_head_or_batch(tmp_path: Path) -> None:
    config = read_config(expert(tmp_path / "expert", 1))
    need = scoring(config, torch.bfloat16, 4096, 512)
    head = 2 * (VOCAB + 4096) * H + (2 + 4) * 4096 * VOCAB + 8 * 512 * VOCAB
    assert need.device == {"two layers": 2 * 2 * LAYER, "head and logits": head}
    assert need.least == 2 * H * 4096
    config.vocab_size, config.pad_token_id = 2, None
    assert scoring(config, torch.bfloat16, 4096, 512).device["a micro-batch"] == 2 * 4096 * (9 * H + 3 * INNER)


def test_a_fit_needs_three_models_a_solve_and_residuals() -> None:
    need = fitting(small(), 1024)
    assert need.device["two layers of three models"] == 6 * 4 * LAYER
    assert need.device["a solve"] == 16 * INNER**2 + 48 * INNER * H
    assert need.total(1000) == need.on_device + 1000 * 2 * 4 * H


def test_threads_of_a_fit_have_a_micro_batch_and_products_each() -> None:
    one, eight = (fitting(small(), 1024, threads=threads) for threads in (1, 8))
    assert eight.device["a micro-batch"] == 8 * one.device["a micro-batch"]
    sums, products = 8 * INNER**2 + 16 * INNER * H, 2 * INNER * (INNER + SUM_ROWS) + 4 * INNER * H
    assert eight.device["sums and products"] == sums + 9 * products


def test_an_expert_that_writes_texts_is_whole() -> None:
    need: Need = writing_texts(small(torch.bfloat16), "law")
    assert need.total() == 4 * (3 * LAYER + 2 * VOCAB * H + H)


@pytest.mark.parametrize(
    ("method", "tensors"), [("average", 6), ("weighted", 6), ("seed", 1), ("dare", 7), ("ties", 10), ("regmean", 5.3)]
)
def test_a_merge_needs_tensors_of_its_method(method: str, tensors: int) -> None:
    """Of four experts, in sizes of the embedding; the grams are small beside it."""
    need = merging(Shape.of(preset("1b"), torch.float32), 4, METHODS[method], 1)
    assert need.total() / (4 * 128256 * 2048) == pytest.approx(tensors, rel=0.02)


def test_a_head_needs_every_expert_s_and_a_solved_one_blocks_and_squares() -> None:
    shape = Shape.of(preset("1b"), torch.float32)
    plain, solved = (merging_head(shape, 4, solved=solved).total() for solved in (False, True))
    assert plain == (4 + 2) * 4 * 128256 * 2048
    assert solved - plain == 4 * 8 * 2**15 * 2048 + 5 * 8 * 2048**2
