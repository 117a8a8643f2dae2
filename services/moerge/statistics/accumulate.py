"""Sums over one shard: gram and cross of every layer (DUME eq. 5), of features divided by their norm's gain."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from moerge.statistics.features import Batch, visit_features
from moerge.statistics.fixed_point import pack, to_integers
from moerge_proto.statistics_file import Int64


@dataclass(frozen=True)
class ShardSums:
    """What one shard adds to a contribution.

    Attributes:
        gram: [L, H(H+1)/2] int64, upper triangles times 2**exponent.
        cross: [L, H] int64, likewise.
        tokens: real tokens seen.
        documents: documents seen.
    """

    gram: Int64
    cross: Int64
    tokens: int
    documents: int

    def __add__(self, other: "ShardSums") -> "ShardSums":
        """Exact, so the order and grouping of shards change nothing. Tokens are bounded, so nothing overflows."""
        return ShardSums(
            self.gram + other.gram,
            self.cross + other.cross,
            self.tokens + other.tokens,
            self.documents + other.documents,
        )


def shard_sums(
    model: PreTrainedModel, gains: Tensor, exponents: Sequence[int], batches: Iterable[Batch], documents: int
) -> ShardSums:
    """Sums u^T u and u over every real token of `batches`, where u = x / gain, and 0 where the gain is 0.

    Products are float32, sums over micro-batches float64, and each sum is rounded once, here, to an integer.

    Args:
        model: trunk with the domain's own MLPs.
        gains: [L, H] float32, the gain of the norm that makes each layer's feature.
        exponents: fractional bits per layer.
        batches: the shard's micro-batches, as its plan has them; other batches give other integers.
        documents: how many documents the batches hold.
    """
    layers, hidden = gains.shape
    gram = torch.zeros(layers, hidden, hidden, dtype=torch.float64)
    cross = torch.zeros(layers, hidden, dtype=torch.float64)
    safe_gains = torch.where(gains == 0, 1.0, gains)
    tokens = 0

    def add(layer: int, x: Tensor) -> None:  # x: [n, H]
        u = torch.where(gains[layer] == 0, 0.0, x.float() / safe_gains[layer])
        gram[layer] += u.T @ u
        cross[layer] += u.sum(dim=0, dtype=torch.float64)

    for batch in batches:
        visit_features(model, batch, add)
        tokens += int(batch.lengths.sum())
    return ShardSums(
        gram=np.stack([to_integers(pack(gram[layer].numpy()), exponents[layer]) for layer in range(layers)]),
        cross=np.stack([to_integers(cross[layer].numpy(), exponents[layer]) for layer in range(layers)]),
        tokens=tokens,
        documents=documents,
    )
