"""RegMean trunks: every linear module outside the MLPs is the least-squares fit to what the experts' own computes on
their own inputs, W = (sum_d W_d G_d) (sum_d G_d)^-1 (Jin et al., 2023), from the owners' trunk contributions."""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PretrainedConfig

from moerge.architectures.families import EMBEDDING, HEAD, Family
from moerge.checkpoint.reader import Checkpoint
from moerge.errors import SolveError
from moerge.routers.ridge import Ridge, one_thread
from moerge.statistics.bounds import input_gain_names
from moerge.statistics.fixed_point import to_floats, unpack
from moerge.trunk.average import average
from moerge.trunk.merge import Method, Piece
from moerge_proto.statistics_file import StatisticsFile, trunk_gram_names

_ROWS = 4096
TOWARDS_AVERAGE = 0.1
"""How strongly a solution is drawn to the average where hardly any token points: times dimensions per token, in units
of the summed grams' mean diagonal. Measured: much less lets few tokens mislead, much more costs quality with many."""
_ROUNDING = 1e-6
"""It is never drawn less than this, which lies above what float32 products leave of eigenvalues that should be zero."""


class ModuleGrams:
    """The grams of one owner's trunk contribution, by the modules that read what was summed; read one at a time."""

    def __init__(self, expert: Checkpoint, file: StatisticsFile, family: Family, config: PretrainedConfig) -> None:
        self.file = file
        self._expert = expert
        names = trunk_gram_names(config.num_hidden_layers)
        self._places = dict(zip(names, enumerate(input_gain_names(family, config)), strict=True))
        self._sums = {HEAD: "head_input"}
        for layer in range(config.num_hidden_layers):
            for module in family.attention.inputs:
                self._sums[module.format(layer=layer) + ".weight"] = f"layers.{layer}.attention_input"
            self._sums[family.attention.output.format(layer=layer) + ".weight"] = f"layers.{layer}.attention_output"

    def __contains__(self, weight: str) -> bool:
        return weight in self._sums

    def gram(self, weight: str) -> Tensor:
        """[in, in] float64 of the inputs of the module with that weight, scaled to a mean diagonal of 1."""
        name = self._sums[weight]
        place, gain = self._places[name]
        packed = to_floats(self.file.array(name), self.file.manifest.exponents[place])
        square = torch.from_numpy(unpack(packed, self._expert_columns(weight)))
        if gain is not None:
            wide = self._expert.tensor(gain).double()
            square = wide[:, None] * square * wide
        return square / square.diagonal().mean().clamp_min(1e-300)

    def _expert_columns(self, weight: str) -> int:
        return self._expert.specs[weight if weight in self._expert.specs else EMBEDDING].shape[1]


def regmean(owners: Sequence[ModuleGrams]) -> Method:
    """The method, over each ordered expert's trunk contribution.

    Each domain's grams have a mean diagonal of 1, so that domains count alike. Embedding rows are weighted by how large
    a share of its domain's tokens each token is; norms and biases are averaged.
    """

    def merge(piece: Piece) -> Tensor:
        those = [owners[expert] for expert in piece.experts]
        if piece.name == EMBEDDING:
            return _embedding(piece, [owner.file for owner in those])
        if piece.name in those[0]:
            return _least_squares(piece, those)
        return average(piece.tensors, piece.dtype)

    return merge


def _least_squares(piece: Piece, owners: Sequence[ModuleGrams]) -> Tensor:
    """[out, in]: argmin over W of sum_d tr((W - W_d) G_d (W - W_d)^T), drawn slightly to the average."""
    rows, columns = piece.tensors[0].shape
    total = torch.zeros(columns, columns, dtype=torch.float64)
    right = torch.zeros(rows, columns, dtype=torch.float64)
    mean = torch.zeros_like(right)
    with one_thread():
        for owner, weight in zip(owners, piece.tensors, strict=True):
            square, wide = owner.gram(piece.name), weight.double()
            total += square
            right += wide @ square
            mean += wide / len(owners)
        tokens = sum(owner.file.manifest.tokens for owner in owners)
        pull = max(TOWARDS_AVERAGE * columns / tokens, _ROUNDING) * float(total.diagonal().mean())
        try:
            factor = Ridge.of(total, pull).factor
        except SolveError as error:
            todo = "the owners send trunk contributions of more text"
            raise SolveError(error.what, where=piece.name, todo=todo) from error
        return torch.cholesky_solve((right + pull * mean).T, factor).T.to(piece.dtype)


def _embedding(piece: Piece, files: Sequence[StatisticsFile]) -> Tensor:
    """Rows weighted by each token's share of its domain's tokens, every token counted once more than it stood."""
    shares = []
    for file in files:
        counts = torch.from_numpy(file.array("token_counts")).double() + 1
        shares.append(counts[piece.start :][: len(piece.tensors[0])] / file.manifest.tokens)
    weights = torch.stack(shares)
    weights = weights / weights.sum(dim=0)
    merged = torch.empty(piece.tensors[0].shape, dtype=piece.dtype)
    for start in range(0, len(merged), _ROWS):
        rows = slice(start, start + _ROWS)
        parts = zip(weights, piece.tensors, strict=True)
        merged[rows] = sum(share[rows, None] * tensor[rows].double() for share, tensor in parts)
    return merged
