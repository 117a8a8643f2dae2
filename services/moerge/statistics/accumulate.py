"""Sums over one shard, as integers: gram and cross of every layer's features (DUME eq. 5), and grams for a trunk."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from moerge.models.batches import Batch
from moerge.models.families import Family
from moerge.statistics.features import visit_features, visit_trunk_inputs
from moerge.statistics.integers import add, pack, to_integers
from moerge_proto.statistics_file import Int64, trunk_gram_names

_BLOCK = 128  # rows of a gram per product; only columns from their first on are computed


@dataclass(frozen=True)
class ShardSums:
    """The sums of one shard, for all layers or some.

    Attributes:
        arrays: the statistics file's tensors of these layers by name, in its order, int64.
        tokens: number of tokens that count.
        documents: number of documents.
    """

    arrays: dict[str, Int64]
    tokens: int
    documents: int

    def __add__(self, other: "ShardSums") -> "ShardSums":
        """The exact sum; the order and grouping of shards change nothing.

        Raises:
            ContributionError: a sum overflows int64.
        """
        return ShardSums(
            {name: add(array, other.arrays[name]) for name, array in self.arrays.items()},
            self.tokens + other.tokens,
            self.documents + other.documents,
        )


class _Sum:
    """The gram and the sum of vectors: products in float32, sums in float64."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._gram = torch.zeros(size, size, dtype=torch.float64, device=device)  # the upper triangle, by blocks
        self._cross = torch.zeros(size, dtype=torch.float64, device=device)

    def add(self, x: Tensor) -> None:
        """Adds vectors x [n, size], float32 or bfloat16."""
        for start in range(0, x.shape[1], _BLOCK):
            rows = x[:, start : start + _BLOCK].T
            self._gram[start : start + _BLOCK, start:] += _product(rows, x[:, start:])
        self._cross += x.sum(dim=0, dtype=torch.float64)

    def gram(self, exponent: int, gains: Tensor | None) -> Int64:
        """The upper triangle of the gram of x / gains, 0 where a gain is 0, times 2**exponent, rounded once."""
        square = self._gram.cpu()
        if gains is not None:
            inverse = _inverse(gains)
            square = inverse[:, None] * square * inverse
        return to_integers(pack(square.numpy()), exponent)

    def cross(self, exponent: int, gains: Tensor) -> Int64:
        """The sum of x / gains, rounded in the same way."""
        return to_integers((self._cross.cpu() * _inverse(gains)).numpy(), exponent)


def _product(left: Tensor, right: Tensor) -> Tensor:
    """left @ right in float32; on a GPU the factors may be bfloat16, which tensor cores multiply exactly."""
    if left.is_cuda and left.dtype is torch.bfloat16:
        return torch.mm(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()


def _inverse(gains: Tensor) -> Tensor:
    """1 / gains in float64, and 0 where a gain is 0."""
    wide = gains.double()
    return torch.where(wide == 0, 0.0, 1 / torch.where(wide == 0, 1.0, wide))


def shard_sums(
    model: PreTrainedModel,
    gains: Tensor,
    exponents: Sequence[int],
    batches: Iterable[Batch],
    documents: int,
    layers: range | None = None,
) -> ShardSums:
    """Sums u^T u and u over every token that counts of `batches`, where u = x / gain, and 0 where the gain is 0.

    Products are float32, sums over micro-batches float64, and each sum is rounded once, here, to an integer.

    Args:
        model: trunk with the domain's own MLPs.
        gains: [L, H] float32, the gain of the norm before each MLP; ones without a norm.
        exponents: fractional bits per layer.
        batches: the micro-batches of the shard's plan; other batches give other integers.
        documents: number of documents in the batches.
        layers: consecutive layers to sum; default: all.
    """
    every, hidden = gains.shape
    sums = {layer: _Sum(hidden, model.device) for layer in (range(every) if layers is None else layers)}
    tokens = 0
    for batch in batches:
        visit_features(model, batch, lambda layer, x: sums[layer].add(x), layers)
        tokens += int(batch.counted.sum())
    arrays: dict[str, Int64] = {}
    for layer in [*sums]:
        each = sums.pop(layer)  # so that not all sums are in memory twice
        arrays[f"layers.{layer}.gram"] = each.gram(exponents[layer], gains[layer])
        arrays[f"layers.{layer}.cross"] = each.cross(exponents[layer], gains[layer])
    return ShardSums(arrays, tokens, documents)


def trunk_shard_sums(
    model: PreTrainedModel,
    family: Family,
    gains: Sequence[Tensor | None],
    exponents: Sequence[int],
    batches: Iterable[Batch],
    documents: int,
    layers: range | None = None,
) -> ShardSums:
    """Sums x^T x over the inputs of the expert's attention and head, and counts tokens; rounded as in `shard_sums`.

    Args:
        model: the owner's own dense expert.
        family: its family.
        gains: per gram, in the file's order, [H] of the norm before the module, or None.
        exponents: fractional bits per gram.
        batches: the shard's micro-batches.
        documents: number of documents in them.
        layers: consecutive layers to sum; default: all. The last one includes the head's inputs and the counts.
    """
    names = trunk_gram_names(model.config.num_hidden_layers)
    sums: dict[int, _Sum] = {}
    counts = torch.zeros(model.config.vocab_size, dtype=torch.int64)

    def visit(index: int, x: Tensor) -> None:
        if index not in sums:
            sums[index] = _Sum(x.shape[1], model.device)
        sums[index].add(x)

    for batch in batches:
        visit_trunk_inputs(model, family, batch, visit, layers)
        counts += torch.bincount(batch.input_ids[batch.counted], minlength=len(counts))
    arrays = {names[index]: sums.pop(index).gram(exponents[index], gains[index]) for index in [*sums]}
    if names[-1] in arrays:
        arrays["token_counts"] = counts.numpy()
    return ShardSums(arrays, int(counts.sum()), documents)
