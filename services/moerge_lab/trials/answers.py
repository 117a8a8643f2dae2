"""`answers`: how far models are from the seed's own answers to chat prompts."""

import json
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from moerge.documents.chat_templates import rendered
from moerge.models.dense_files import DenseFiles
from moerge.models.tokens import Tokens
from moerge.progress import progress
from moerge.scoring.perplexity import Score, Window, document_scores, load, logits, losses_by
from moerge.settings import single_values
from moerge_lab.trials.inputs import print_head


@torch.inference_mode()
def _answered(seed: Any, tokenizer: Any, prompts: Sequence[str], tokens: int) -> list[Window]:
    """Each prompt behind the chat template with the seed's likeliest answer, whose tokens are scored."""
    result = []
    with progress().track("answering", len(prompts), "prompts") as tracker:
        for number, prompt in enumerate(prompts):
            text = rendered(tokenizer, [{"role": "user", "content": prompt}], prompt=True)
            asked = tokenizer(text, add_special_tokens=False, return_tensors="pt").to(seed.device)
            whole = seed.generate(**asked, do_sample=False, max_new_tokens=tokens)[0].tolist()
            result.append(Window(Tokens(whole), len(whole) - asked["input_ids"].shape[1], number))
            tracker.advance(1)
    return result


def _more(scores: Sequence[Score], seed: Sequence[Score]) -> tuple[float, float]:
    """Nats per token more than the seed's, with the standard error over answers."""
    pairs = [(one.nll - other.nll, one.tokens) for one, other in zip(scores, seed, strict=True)]
    every = sum(tokens for _, tokens in pairs)
    mean = sum(nats for nats, _ in pairs) / every
    return mean, math.sqrt(sum((nats - mean * tokens) ** 2 for nats, tokens in pairs)) / every


def answers(
    models: Annotated[list[str], typer.Argument(metavar="NAME=FOLDER...", help="Experts or versions.")],
    base: Annotated[Path, typer.Option(help="Folder of the seed, which has a chat template.")],
    prompts: Annotated[Path, typer.Option(help='JSON lines with the field "prompt".')],
    limit: Annotated[int, typer.Option(min=2, help="Most prompts.")] = 100,
    tokens: Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")] = 64,
    device: Annotated[str, typer.Option()] = "cpu",
) -> None:
    """Score the seed's answers to chat prompts by other models, in nats per token more than by the seed itself."""
    lines = prompts.read_text(encoding="utf-8").splitlines()[:limit]
    seed, folders = load(base, device=device), single_values("models", models)
    cut = _answered(seed, DenseFiles(base).tokenizer, [json.loads(line)["prompt"] for line in lines], tokens)
    scored = sum(window.scored for window in cut)
    with progress().track("scoring", scored * (len(folders) + 1), "tokens") as tracker:
        own = document_scores(losses_by(partial(logits, seed)), cut, tracker)
        print_head("", f"nats more, {scored:,} tokens in {len(cut)} answers")
        for name, folder in folders.items():
            model = load(Path(folder), device=device)
            more, error = _more(document_scores(losses_by(partial(logits, model)), cut, tracker), own)
            print(f"| {name} | {more:.3f} ± {error:.3f} |", flush=True)
