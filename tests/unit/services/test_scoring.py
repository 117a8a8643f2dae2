"""Overlapping windows count a token once; forcing holds for every top-k."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from moerge.models.dense import domain_model
from moerge.models.tokens import Tokens
from moerge.scoring.perplexity import score, windows
from moerge.scoring.routers import forced
from support.models import expert
from support.progress import Silent
from support.versions import ROWS, logits, published


def test_overlapping_windows_score_each_token_once_from_its_own_window(tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(expert(tmp_path, seed=1), dtype=torch.float32)
    context, stride, document = 16, 6, ROWS[0]
    expected, scored = 0.0, 1
    for start in range(0, len(document) - 1, stride):
        end = min(start + context, len(document))
        with torch.inference_mode():
            chances = model(torch.tensor([document[start:end]])).logits[0].log_softmax(dim=-1)
        for place in range(scored, end):
            expected -= float(chances[place - start - 1, document[place]])
        scored = end
    found = score(model, windows([Tokens(document)], context, stride), Silent())
    assert found.tokens == len(document) - 1
    assert found.nll == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_law_6_forced_to_one_expert_others_weigh_nothing_at_any_top_k(tmp_path: Path, top_k: int) -> None:
    experts = [expert(tmp_path / str(seed), seed=seed) for seed in (1, 2, 3)]
    version = AutoModelForCausalLM.from_pretrained(published(experts, tmp_path, top_k), dtype=torch.float32)
    for slot, folder in enumerate(experts):
        with forced(version, slot):
            found = logits(version)
        dense, _ = domain_model(folder, tmp_path / "trunk" / "trunk.safetensors")
        torch.testing.assert_close(found, logits(dense), atol=1e-4, rtol=0)
