"""Memory of coordinator and merge at the size of one 70B layer, with weights and sums read in ranges, as from S3."""

import os
import sys
from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaConfig

from bench.inputs import cached, features
from bench.layer_child import DOMAINS
from bench.measure import Run, in_turns, process, say
from bench.registry import HOME, Pair, benchmark
from moerge.files import atomic_file
from moerge.memory.shapes import layer_parameters
from moerge.models.expert_folder import DenseExpert
from moerge.models.reader import model_shapes
from moerge.models.writer import TensorPlan, write_safetensors
from moerge.statistics.contribution import body_manifest
from moerge.statistics.integers import pack, to_integers
from moerge_proto.digests import digest_of
from moerge_proto.statistics_file import Int64, RouterManifest, StatisticsSettings, exponent, write
from support.models import tokenizer

TOKENS = 4096


def config(*, hidden: int, layers: int, intermediate: int, vocabulary: int, key_heads: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 128,
        num_key_value_heads=key_heads,
        head_dim=128,
        dtype="bfloat16",
    )


LARGE = config(hidden=8192, layers=1, intermediate=28672, vocabulary=4096, key_heads=8)
SMALL = config(hidden=2048, layers=16, intermediate=64, vocabulary=8192, key_heads=4)
LAYER = 2 * layer_parameters(LARGE)
SHAPES = f"one layer of 70B (H 8192, MLP 28672, V 4096), {len(DOMAINS)} experts in bfloat16, {LAYER / 1e9:.2f} GB"


def write_expert(folder: Path, settings: LlamaConfig, slot: int) -> None:
    """A random expert, made tensor by tensor. All experts have the same tensors but for small differences."""

    def made(number: int, size: tuple[int, ...]) -> Tensor:
        if len(size) == 1:
            return torch.ones(size, dtype=torch.bfloat16)
        common, own = torch.Generator().manual_seed(number), torch.Generator().manual_seed(10**6 * (slot + 1) + number)
        row = torch.randn(size[1], generator=own, dtype=torch.bfloat16)
        return torch.randn(size, generator=common, dtype=torch.bfloat16).mul_(0.02).add_(row, alpha=0.005)

    plans = [
        TensorPlan(name, torch.bfloat16, size, lambda number=number, size=size: made(number, size))  # type: ignore[misc]
        for number, (name, size) in enumerate(model_shapes(settings).items())
    ]
    folder.mkdir()
    settings.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    with (folder / "weights").open("wb") as out:
        write_safetensors(out, plans)


def write_sums(folder: Path, settings: LlamaConfig, slot: int) -> None:
    """A router and a body contribution, with the same gram throughout."""
    domain = DOMAINS[slot]
    u = features(settings.hidden_size, TOKENS, 0, slot)
    gram, cross = pack((u.T @ u).double().numpy()), u.sum(dim=0, dtype=torch.float64).numpy()
    counts = {"tokens": TOKENS, "documents": 1, "shards": [digest_of(domain)]}
    router = RouterManifest.model_validate(
        {
            "owner": "owner",
            "expert": digest_of(domain),
            "domain": domain,
            "body": digest_of("body"),
            "settings": StatisticsSettings(),
            "hidden_size": settings.hidden_size,
            "layers": settings.num_hidden_layers,
            "exponents": [exponent(settings.hidden_size)] * settings.num_hidden_layers,
            **counts,
        }
    )
    bits = router.exponents[0]
    with atomic_file(folder / f"router-{domain}") as out:
        write(out, router, [to_integers(gram, bits), to_integers(cross, bits)] * settings.num_hidden_layers)
    link = folder / domain / "model.safetensors"
    os.link(folder / domain / "weights", link)
    own = DenseExpert(domain, folder / domain)
    body = body_manifest("owner", own, digest_of(domain), StatisticsSettings()).model_copy(update=counts)
    link.unlink()

    def arrays() -> "list[Int64]":
        counted = torch.full((settings.vocab_size,), TOKENS // settings.vocab_size).numpy()
        return [*(to_integers(gram, item) for item in body.exponents), counted]

    with atomic_file(folder / f"body-{domain}") as out:
        write(out, body, arrays())


def made(folder: Path, settings: LlamaConfig = LARGE) -> None:
    """The experts and their contributions."""
    for slot, domain in enumerate(DOMAINS):
        say(f"  inputs of {domain}")
        write_expert(folder / domain, settings, slot)
        write_sums(folder, settings, slot)


@cache
def run(name: str) -> Run:
    """One piece of work in a process of its own; those after the merge use its body."""
    folder = cached(HOME / "layer", made)
    if name in ("solve", "influence", "publish") and not (folder / "blobs").is_dir():
        run("merge-average")
    return child(name, folder, 1)


def child(name: str, folder: Path, threads: int) -> Run:
    """The work in a process with so many threads."""
    given = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    result = process([sys.executable, "-m", "bench.layer_child", name, str(folder)], HOME / "layer.log", given)
    say(f"  {name}: {result.seconds:.0f} s, {result.anonymous / 1e9:.2f} GB")
    return result


@benchmark("merge-two", "merge by `regmean`, a thread, s", "the same, two threads", ">=", 1.5, "H 2048, L 16, V 8192")
def merge_two() -> list[Pair]:
    folder = cached(HOME / "small", lambda folder: made(folder, SMALL))
    result = in_turns(lambda: child("merge-regmean", folder, 2), lambda: child("merge-regmean", folder, 1), 3)
    return [(two.seconds, one.seconds) for two, one in result]


def memory(name: str) -> list[Pair]:
    """The peak anonymous memory above that of a process that only imports the same modules, and one layer's bytes."""
    return [(run(name).anonymous - run("nothing").anonymous, LAYER)]


PARTS = {
    "receive": ("an expert's check", 1.25),
    "validate": ("a contribution's check", 0.75),
    "merge-average": ("a merge by average", 0.5),
    "merge-regmean": ("a merge by regmean", 2.5),
    "solve": ("the routers of a layer", 1.5),
    "influence": ("the owners' influence", 2.5),
    "publish": ("writing a version", 0.75),
}
for part, (figure, reach) in PARTS.items():
    benchmark(f"layer-{part}", f"{figure}, anonymous memory", "the layer's weights", "<=", reach, SHAPES, "layer")(
        lambda part=part: memory(part)  # type: ignore[misc]
    )
