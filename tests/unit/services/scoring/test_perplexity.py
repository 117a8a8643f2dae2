"""Overlapping windows count a token once; forcing holds for every top-k."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from moerge.models.tokens import Tokens
from moerge.scoring.perplexity import score, windows
from support.models import expert
from support.progress import Silent
from support.versions import ROWS


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
