"""Overlapping windows count a token once; each document has a score of its own."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from moerge.models.tokens import Tokens, all_counted
from moerge.scoring.perplexity import Rows, document_scores, logits, losses_by, score, total, windows
from support.models import expert
from support.progress import Silent
from support.versions import ROWS


def test_overlapping_windows_score_each_token_once(tmp_path: Path) -> None:
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
    result = score(model, windows([Tokens(document)], context, stride), Silent())
    assert result.tokens == len(document) - 1
    assert result.nll == pytest.approx(expected, rel=1e-5)


def test_each_document_s_score_is_that_of_it_alone(tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(expert(tmp_path, seed=1), dtype=torch.float32)
    losses = losses_by(lambda rows: logits(model, rows))
    documents = [ROWS[1], ROWS[2][:3], [7], ROWS[0]]
    result = document_scores(losses, windows(all_counted(documents), 16, 6), Silent())
    alone = [score(model, windows([Tokens(item)], 16, 6), Silent()) for item in (ROWS[1], ROWS[2][:3], ROWS[0])]
    assert [item.tokens for item in result] == [item.tokens for item in alone] == [39, 2, 39]
    assert [item.nll for item in result] == pytest.approx([item.nll for item in alone], rel=1e-5)
    assert total(result).tokens == 80


def test_losses_are_negative_log_probabilities_of_next_tokens() -> None:
    """With logits 0 and log 3, the probabilities are 1/4 and 3/4."""
    rows = Rows(torch.tensor([[0, 1, 0], [1, 1, 1]]), [3, 3], "")
    result = losses_by(lambda rows: torch.tensor([1.0, 3.0]).log().expand(2, 3, 2))(rows)
    assert (-result).exp().tolist() == [pytest.approx([3 / 4, 1 / 4]), pytest.approx([3 / 4, 3 / 4])]
