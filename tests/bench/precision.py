"""The effect of bfloat16 on the routers, with the demo's experts and texts."""

from collections.abc import Sequence
from functools import cache
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from bench.measure import say
from bench.registry import HOME, Pair, benchmark
from moerge.files import cache_folder
from moerge.models.batches import batches
from moerge.models.dense import domain_model
from moerge.models.tokens import all_counted
from moerge.progress import progress
from moerge.scoring.perplexity import score, windows
from moerge.scoring.routers import routers
from moerge_lab.experts import corpora
from moerge_lab.experts.train import train
from support.documents import texts_of
from support.models import on_body
from support.passes import visit_features
from support.progress import Silent
from support.versions import body_file, published

CONTEXT, DOCUMENTS = 256, 30
SHAPES = f"the demo's four experts, {DOCUMENTS} documents per domain to solve and {DOCUMENTS} to compare"


def rows(tokenizer: PreTrainedTokenizerBase, text: Path) -> list[list[int]]:
    """Token ids of a file's first documents, at most CONTEXT a row."""
    ids = [tokenizer(item)["input_ids"] for item in islice(texts_of([text]), DOCUMENTS)]
    return [item[start : start + CONTEXT] for item in ids for start in range(0, len(item), CONTEXT)]


@cache
def versions() -> tuple[list[Path], list[list[list[int]]], dict[torch.dtype, Path]]:
    """The experts, each domain's held-out rows, and the version of each precision."""
    texts = corpora.write(cache_folder() / "texts")
    made = train(texts, cache_folder() / "experts", progress()).experts
    experts = [made[domain] for domain in corpora.DOMAINS]
    tokenizer = AutoTokenizer.from_pretrained(experts[0])
    sent = [rows(tokenizer, texts[domain]["statistics"]) for domain in corpora.DOMAINS]
    held = [rows(tokenizer, texts[domain]["heldout"]) for domain in corpora.DOMAINS]
    folders = {}
    for dtype in (torch.bfloat16, torch.float32):
        say(f"  statistics in {dtype}")
        home = HOME / f"precision-{str(dtype).removeprefix('torch.')}"
        home.mkdir(parents=True, exist_ok=True)
        folders[dtype] = published(experts, home, rows=sent, precision=str(dtype).removeprefix("torch."))
    return experts, held, folders


@torch.inference_mode()
def elsewhere(expert: Path, body: Path, cut: Sequence[list[int]], both: Sequence[Sequence[Tensor]]) -> Pair:
    """The number of tokens, over all layers, that the two routers send to different experts; and of all."""
    model, _ = domain_model(*on_body(expert, body))
    moved, seen = 0, 0

    def visit(layer: int, x: Tensor) -> None:
        nonlocal moved, seen
        one, other = ((x @ item[layer].T).argmax(dim=1) for item in both)
        moved, seen = moved + int((one != other).sum()), seen + len(x)

    for batch in batches(all_counted(cut), 4096):
        visit_features(model, batch, visit)
    return moved, seen


@benchmark(
    "precision-routing",
    "tokens routed differently by bfloat16 statistics",
    "all, float32",
    "<=",
    0.01,
    SHAPES,
    "precision",
)
def precision_routing() -> list[Pair]:
    experts, held, folders = versions()
    body = body_file(experts, HOME / "precision-body")
    both = []
    for dtype in (torch.bfloat16, torch.float32):
        model = AutoModelForCausalLM.from_pretrained(folders[dtype], dtype=torch.float32)
        both.append([router.get_parameter("weight") for router in routers(model)])
    return [elsewhere(expert, body, cut, both) for expert, cut in zip(experts, held, strict=True)]


@benchmark(
    "precision-perplexity", "perplexity with bfloat16 statistics", "with float32", "<=", 1.005, SHAPES, "precision"
)
def precision_perplexity() -> list[Pair]:
    _, held, folders = versions()
    result = []
    for dtype in (torch.bfloat16, torch.float32):
        model = AutoModelForCausalLM.from_pretrained(folders[dtype], dtype=torch.float32)
        result.append(
            [score(model, windows(all_counted(cut), CONTEXT, CONTEXT // 2), Silent()).perplexity for cut in held]
        )
    return list(zip(*result, strict=True))
