"""RegMean trunks: every linear module outside the MLPs is the least-squares fit to what the experts' own computes on
their own inputs, W = (sum_d W_d G_d) (sum_d G_d)^-1 (Jin et al., 2023), from the owners' trunk contributions."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from transformers import PretrainedConfig

from moerge.architectures.families import EMBEDDING, HEAD, Family
from moerge.checkpoint.reader import Checkpoint
from moerge.routers.ridge import Ridge, one_thread
from moerge.statistics.bounds import input_gain_names
from moerge.statistics.fixed_point import to_floats, unpack
from moerge.trunk.average import average
from moerge.trunk.merge import Method, Piece
from moerge_proto.statistics_file import StatisticsFile, trunk_gram_names

_ROWS = 4096
TOWARDS_AVERAGE = 0.01
"""How strongly a solution is drawn to the average, in units of the summed grams' mean diagonal. It decides where hardly
any token points; without it, weights grow there to several times the experts' own."""


def regmean(
    experts: Sequence[Checkpoint], files: Sequence[StatisticsFile], family: Family, config: PretrainedConfig
) -> Method:
    """The method, over opened experts and each one's trunk contribution.

    Each domain's grams are scaled to a mean diagonal of 1, so that domains count alike. Embedding rows are weighted by
    how large a share of its domain's tokens each token is; norms, biases, and rows that no domain counted are averaged.
    """
    sources = _sources(family, config)

    def merge(piece: Piece) -> Tensor:
        if piece.name == EMBEDDING:
            return _embedding(piece, files)
        if piece.name not in sources:
            return average(piece.tensors, piece.dtype)
        name, index, gain = sources[piece.name]

        def gram(expert: int) -> Tensor:
            file = files[expert]
            array = to_floats(file.array(name), file.manifest.exponents[index])
            size = piece.tensors[0].shape[1]
            square = torch.from_numpy(unpack(array, size))
            if gain is not None:
                wide = experts[expert].tensor(gain).double()
                square = wide[:, None] * square * wide
            return square / square.diagonal().mean().clamp_min(1e-300)

        return _least_squares(piece, gram)

    return merge


def _sources(family: Family, config: PretrainedConfig) -> dict[str, tuple[str, int, str | None]]:
    """Weight's name -> name and place of the gram of its inputs, and the norm whose gain that was divided by."""
    named = zip(trunk_gram_names(config.num_hidden_layers), input_gain_names(family, config), strict=True)
    grams = {name: (name, index, gain) for index, (name, gain) in enumerate(named)}
    sources = {HEAD: grams["head_input"]}
    for layer in range(config.num_hidden_layers):
        for module in family.attention.inputs:
            sources[module.format(layer=layer) + ".weight"] = grams[f"layers.{layer}.attention_input"]
        sources[family.attention.output.format(layer=layer) + ".weight"] = grams[f"layers.{layer}.attention_output"]
    return sources


def _least_squares(piece: Piece, gram: Callable[[int], Tensor]) -> Tensor:
    """[out, in]: argmin over W of sum_d tr((W - W_d) G_d (W - W_d)^T), drawn slightly to the average."""
    rows, columns = piece.tensors[0].shape
    total = torch.zeros(columns, columns, dtype=torch.float64)
    right = torch.zeros(rows, columns, dtype=torch.float64)
    mean = torch.zeros_like(right)
    with one_thread():
        for expert, weight in zip(piece.experts, piece.tensors, strict=True):
            square, wide = gram(expert), weight.double()
            total += square
            right += wide @ square
            mean += wide / len(piece.experts)
        pull = TOWARDS_AVERAGE * float(total.diagonal().mean())
        factor = Ridge.of(total, pull).factor
        return torch.cholesky_solve((right + pull * mean).T, factor).T.to(piece.dtype)


def _embedding(piece: Piece, files: Sequence[StatisticsFile]) -> Tensor:
    """Rows weighted by each token's share of its domain's tokens."""
    shares = []
    for expert in piece.experts:
        counts = torch.from_numpy(files[expert].array("token_counts")).double()
        shares.append(counts[piece.start :][: len(piece.tensors[0])] / files[expert].manifest.tokens)
    weights = torch.stack(shares)
    weights[:, weights.sum(dim=0) == 0] = 1
    weights = weights / weights.sum(dim=0)
    merged = torch.empty(piece.tensors[0].shape, dtype=piece.dtype)
    for start in range(0, len(merged), _ROWS):
        rows = slice(start, start + _ROWS)
        parts = zip(weights, piece.tensors, strict=True)
        merged[rows] = sum(share[rows, None] * tensor[rows].double() for share, tensor in parts)
    return merged
