"""Sums and statistics files without a model: random features, summed as by `Sum`."""

from functools import reduce
from operator import add
from pathlib import Path

import torch

from moerge.routers.ridge import Ridge, unit_columns
from moerge.statistics.accumulate import ShardSums
from moerge.statistics.integers import pack, to_integers
from moerge.threads import one_thread
from moerge_proto.digests import sha256_hex
from moerge_proto.statistics_file import Manifest, RouterManifest, StatisticsSettings, exponent, write

LAYERS = 2
BATCH = 4096


def shard_of(u: torch.Tensor) -> ShardSums:
    """Sums of features u [n, H] float32, the same in every layer, by micro-batches, rounded once."""
    bits = exponent(u.shape[1])
    gram = torch.stack([(part.T @ part).double() for part in u.split(BATCH)]).sum(dim=0)
    cross = u.sum(dim=0, dtype=torch.float64)
    parts = {"gram": to_integers(pack(gram.numpy()), bits), "cross": to_integers(cross.numpy(), bits)}
    arrays = {f"layers.{layer}.{name}": array.copy() for layer in range(LAYERS) for name, array in parts.items()}
    return ShardSums(arrays, tokens=len(u), documents=1)


def honest_shards(hidden: int, tokens: int, shards: int, rank: int, seed: int) -> list[ShardSums]:
    """Shards of `tokens` RMS-normalised float32 features each, in at most `rank` directions."""
    generator = torch.Generator().manual_seed(seed)
    directions = torch.randn(min(rank, hidden), hidden, generator=generator)
    drawn = []
    for _ in range(shards):
        x = torch.randn(tokens, len(directions), generator=generator) @ directions
        drawn.append(shard_of(x / (x.pow(2).mean(dim=1, keepdim=True) + 1e-9).sqrt()))
    return drawn


def honest_sums(hidden: int, tokens: int, shards: int, rank: int, seed: int) -> ShardSums:
    return reduce(add, honest_shards(hidden, tokens, shards, rank, seed))


def manifest_of(sums: ShardSums, shards: int, *, domain: str = "law", first_shard: int = 0) -> RouterManifest:
    hidden = len(sums.arrays["layers.0.cross"])
    return RouterManifest(
        owner="owner",
        expert=sha256_hex(domain.encode()),
        domain=domain,
        body="7" * 64,
        settings=StatisticsSettings(),
        hidden_size=hidden,
        layers=LAYERS,
        exponents=[exponent(hidden)] * LAYERS,
        tokens=sums.tokens,
        documents=sums.documents,
        shards=sorted(sha256_hex(f"{domain} {first_shard + i}".encode()) for i in range(shards)),
    )


def written(path: Path, manifest: Manifest, sums: ShardSums) -> Path:
    with path.open("wb") as out:
        write(out, manifest, sums.arrays.values())
    return path


def ridge_router(gram: torch.Tensor, cross: torch.Tensor, ridge_lambda: float) -> torch.Tensor:
    """The router of one layer by ridge regression, [H, D] float64; every column has norm 1."""
    with one_thread():
        return unit_columns(Ridge.of(gram.clone(), ridge_lambda).solve(cross))
