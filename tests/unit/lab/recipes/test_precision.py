"""Number formats of recipes' models."""

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from moerge.errors import MoergeError
from moerge.models.families import EMBEDDING
from moerge.scoring.perplexity import Rows
from moerge.scoring.perplexity import load as stock
from moerge.scoring.routers import routers
from moerge_lab.recipes import precision
from moerge_lab.recipes.base import Fleet
from moerge_lab.recipes.models import FromLogits, Loaded, Routed, load
from moerge_lab.recipes.precision import BLOCK, Dtype, convert
from support.models import expert
from support.recipes import fleet, only
from support.versions import ROWS

ROW = Rows(torch.tensor([ROWS[0], ROWS[1]]), [len(ROWS[0]), len(ROWS[1])], "d0")
WIDE: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96}


def blocks(weights: Tensor, levels: int) -> Tensor:
    """Each block of 32 weights in whole steps of its largest one / levels; the step is stored in float16."""
    cut = weights.reshape(-1, BLOCK)
    largest = cut.gather(1, cut.abs().argmax(dim=1, keepdim=True))
    step = largest.abs() / levels if levels == 127 else largest / -levels
    units = cut / step
    whole = units.round() if levels == 127 else (units + levels + 0.5).floor().clamp(0, 15) - levels
    return (whole * step.half().float()).reshape(weights.shape)


@pytest.mark.parametrize(("dtype", "levels"), [("Q8_0", 127), ("Q4_0", 8)])
def test_only_matrices_are_rounded_in_blocks_of_32(tmp_path: Path, dtype: Dtype, levels: int) -> None:
    on = replace(fleet(tmp_path, 2, **WIDE), dtype=dtype)
    model = only("dume", on)
    assert isinstance(model, Routed)
    exact, kept, changed = stock(on.work / "version").state_dict(), routers(model.model), 0
    for name, own in model.model.state_dict().items():
        before = exact[name]
        if own.dim() == 1 or any(torch.equal(own, item.get_parameter("weight")) for item in kept):
            assert torch.equal(own, before), name
            continue
        changed += 1
        assert not torch.equal(own, before), name
        differing = (own - blocks(before, 127 if name == "lm_head.weight" else levels)).abs() > 1e-7
        assert float(differing.double().mean()) < 1e-3, name  # halves may be rounded either way
    assert changed == 1 + 3 * (4 + 2) + 1


def test_an_embedding_that_is_the_head_too_is_rounded_as_a_head(tmp_path: Path) -> None:
    folder = expert(tmp_path, 1, **WIDE, tie_word_embeddings=True)
    in_four, in_eight = (load(folder, dtype=dtype).state_dict() for dtype in ("Q4_0", "Q8_0"))
    assert torch.equal(in_four[EMBEDDING], in_eight[EMBEDDING])
    assert not any(torch.equal(in_four[name], in_eight[name]) for name in in_four if "_proj" in name)


def test_bfloat16_is_the_stock_model_s_own(tmp_path: Path) -> None:
    folder = expert(tmp_path, 1)
    own = Loaded.of(folder, dtype="bfloat16").model
    other = stock(folder, torch.bfloat16)
    with torch.inference_mode():
        assert torch.equal(own(ROW.ids).logits, other(ROW.ids).logits)


def test_a_matrix_whose_width_is_no_multiple_of_a_block_is_left(tmp_path: Path) -> None:
    folder = expert(tmp_path, 1, hidden_size=24, num_attention_heads=2, num_key_value_heads=1, head_dim=12)
    before, after = (load(folder, dtype=dtype).state_dict() for dtype in ("float32", "Q8_0"))
    assert torch.equal(before[EMBEDDING], after[EMBEDDING])


@torch.no_grad()
def moved(spec: str, on: Fleet, dtype: Dtype) -> float:
    """The median over tokens of the mean change of log probabilities; few tokens change their expert."""
    model = only(spec, on)
    assert isinstance(model, FromLogits)
    exact = model.logits(ROW).log_softmax(dim=2)
    assert isinstance(model, Loaded)
    convert(model.model, dtype)
    return float((model.logits(ROW).log_softmax(dim=2) - exact).abs().mean(dim=2).median())


@pytest.mark.parametrize("dtype", ["bfloat16", "Q8_0"])
def test_low_precision_harms_solved_trunk_no_more_than_average(tmp_path: Path, dtype: Dtype) -> None:
    on = fleet(tmp_path, **WIDE)
    average = moved("dume", on, dtype)
    assert average > 0
    for spec in ("regmean", "recommended", "recommended:fit=1"):
        assert moved(spec, on, dtype) < 1.5 * average, spec


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    precision.require("bfloat16")
    with pytest.raises(MoergeError, match="gguf isn't installed"):
        precision.require("Q8_0")
