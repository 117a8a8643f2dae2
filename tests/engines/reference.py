"""Texts, and transformers' answers to them."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from engines.compare import Answers

NEW_TOKENS = 8
LENGTHS = (3, 9, 17, 30, 41, 48)
"""Of the texts, in tokens: on both sides of a window, and with the new ones within an original context of 64."""


def prompts() -> list[list[int]]:
    """Random lower-case letters, one token each."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(97, 123, (length,), generator=generator).tolist() for length in LENGTHS]


def load(folder: Path, **options: Any) -> Any:
    """The model of a folder, in float32.

    Raises:
        AssertionError: tensors are missing or left over; transformers only warns.
    """
    result: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True, **options)
    assert not any(result[1].values()), result[1]
    return result[0].eval()


@torch.inference_mode()
def answers(model: Any) -> Answers:
    """A model's answers, one text at a time, all tokens at once and without a cache."""
    scores, tokens = [], []
    for prompt in prompts():
        ids = torch.tensor([prompt])
        for _ in range(NEW_TOKENS):
            following = model(ids, use_cache=False).logits[:, -1:].argmax(-1)
            ids = torch.cat([ids, following], dim=1)
        logits = model(ids, use_cache=False).logits.double().log_softmax(-1)
        scores.append(logits[0, :-1].gather(-1, ids[0, 1:, None])[:, 0].tolist())
        tokens.append(ids[0, len(prompt) :].tolist())
    return Answers(scores, tokens)
