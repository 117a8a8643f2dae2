"""`sentences`: the share of a short text's tokens for its own domain's expert."""

import json
import random
import re
from collections.abc import Mapping, Sequence
from itertools import chain, cycle, islice
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from moerge.models.batches import pad
from moerge.models.dense_files import DenseFiles
from moerge.scoring.perplexity import load
from moerge_lab.recipes.published import publish
from moerge_lab.recipes.recommended import OPTIONS, PARTS
from moerge_lab.table.measure import fleet_of
from moerge_lab.trials.inputs import PresetName, inputs_of, print_head

LENGTHS = (8, 16, 32, 64, 256)
SHORTEST, BATCH = 12, 16
BREAK = re.compile(r"\n\s*|[.;] +")


def _texts(files: Sequence[str], tokenizer: Any, most: int, *, inside: bool) -> list[list[int]]:
    """Up to `most` texts, at most one token longer than the longest length; `inside`: from a sentence or line on."""
    drawn = random.Random(0)  # noqa: S311  # no secret
    lines = chain.from_iterable(Path(file).read_text(encoding="utf-8").splitlines() for file in files)
    documents, result = [json.loads(line)["text"] for line in lines], list[list[int]]()
    drawn.shuffle(documents)
    for text in islice(cycle(documents), 4 * most):
        places = [match.end() for match in BREAK.finditer(text)] if inside else []
        row = tokenizer(text[drawn.choice(places or [0]) :])["input_ids"][: LENGTHS[-1] + 1]
        if len(row) >= SHORTEST and len(result) < most:
            result.append(row)
    return result


@torch.inference_mode()
def _chosen(model: Any, rows: Sequence[list[int]]) -> list[Tensor]:
    """The first-choice expert of each token but the first, [L, T - 1] int64 for each row of T tokens."""
    result = list[Tensor]()
    for start in range(0, len(rows), BATCH):
        some = rows[start : start + BATCH]
        ids = pad(some)
        logits = model(input_ids=ids, use_cache=False, output_router_logits=True).router_logits
        choices = torch.stack(logits).argmax(-1).unflatten(1, ids.shape)  # [L, B, T]
        result += [choices[:, number, 1 : len(row)] for number, row in enumerate(some)]
    return result


def _frequencies(texts: Sequence[Sequence[list[int]]], vocabulary: int) -> Tensor:
    """log p(token | domain) in documents, half a count added: [D, V] float64."""
    ids = (torch.tensor(list(chain.from_iterable(documents))) for documents in texts)
    counts = torch.stack([torch.bincount(item, minlength=vocabulary) for item in ids]) + 0.5
    return (counts.double() / counts.sum(dim=1, keepdim=True)).log()


def _print_row(name: str, choices: Mapping[str, Sequence[Tensor]]) -> None:
    """The mean over domains of the own expert's share in the first tokens of texts."""

    def share(slot: int, texts: Sequence[Tensor], length: int) -> float:
        return float((torch.cat([text[:, :length] for text in texts], dim=1) == slot).double().mean())

    shares = [fmean(share(*item, length) for item in enumerate(choices.values())) for length in LENGTHS]
    print(f"| {name} | {' | '.join(f'{100 * item:.0f} %' for item in shares)} |", flush=True)


def sentences(
    preset: PresetName = "small",
    texts: Annotated[int, typer.Option(min=1, help="Texts of each domain and kind.")] = 60,
) -> None:
    """Measure the share of a text's tokens for its own domain's expert in `recommended`, after some numbers of tokens.

    Rows of counts are bounds: the domain whose statistics documents give the token, or all tokens so far, the highest
    probability.
    """
    inputs = inputs_of(preset)
    tokenizer, domains = DenseFiles(inputs.base).tokenizer, inputs.texts()
    kinds: dict[str, dict[str, list[list[int]]]] = {"held-out": {}, "held-out sentences": {}, "other sentences": {}}
    for domain, source in inputs.sources.items():
        kinds["held-out"][domain] = _texts(source.held_out, tokenizer, texts, inside=False)
        kinds["held-out sentences"][domain] = _texts(source.held_out, tokenizer, texts, inside=True)
        kinds["other sentences"][domain] = _texts(source.other, tokenizer, texts, inside=True)
    frequencies = _frequencies([text.statistics for text in domains.values()], len(tokenizer))
    with TemporaryDirectory() as work:
        model = load(publish(PARTS, fleet_of(domains, inputs.settings, 0, Path(work)), OPTIONS))
    print_head("", *(f"{length} tokens" for length in LENGTHS))
    for kind, rows in kinds.items():
        _print_row(f"recommended, {kind}", {domain: _chosen(model, row) for domain, row in rows.items()})
        evidence = {domain: [frequencies[:, ids[1:]] for ids in row] for domain, row in rows.items()}
        alone = {domain: [item.argmax(0, keepdim=True) for item in items] for domain, items in evidence.items()}
        so_far = {
            domain: [item.cumsum(1).argmax(0, keepdim=True) for item in items] for domain, items in evidence.items()
        }
        _print_row(f"counts of the token alone, {kind}", alone)
        _print_row(f"counts of all tokens so far, {kind}", so_far)
