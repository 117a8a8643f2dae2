"""RegMean trunks: every linear module outside the MLPs is the least-squares fit to what the experts' own computes on
their own inputs, W = (sum_d W_d G_d) (sum_d G_d)^-1 (Jin et al., 2023), from the owners' trunk contributions."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

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
_STEPS = 8
"""A token's shares are rounded to so many parts of the largest, so that many rows of the head have the same."""
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
    a share of its domain's tokens each token is, and so are the domains in the least squares of each of the head's
    rows; norms and biases are averaged.
    """

    def merge(piece: Piece) -> Tensor:
        those = [owners[expert] for expert in piece.experts]
        if piece.name == EMBEDDING:
            return _embedding(piece, [owner.file for owner in those])
        tokens = sum(owner.file.manifest.tokens for owner in those)
        if piece.name == HEAD:
            return _head(piece, those, tokens)
        if piece.name in those[0]:
            return _least_squares(piece, (owner.gram(piece.name) for owner in those), tokens)
        return average(piece.tensors, piece.dtype)

    return merge


def _least_squares(piece: Piece, grams: Iterable[Tensor], tokens: int, shares: Sequence[float] | None = None) -> Tensor:
    """[out, in]: argmin over W of sum_d s_d tr((W - W_d) G_d (W - W_d)^T), drawn slightly to the mean by `shares` s.

    Args:
        grams: G_d, [in, in] float64 each, one in memory at a time.
        tokens: that all grams were summed over.
        shares: one per expert of the piece, with a sum of 1; equal by default.
    """
    rows, columns = piece.tensors[0].shape
    total = torch.zeros(columns, columns, dtype=torch.float64)
    right = torch.zeros(rows, columns, dtype=torch.float64)
    mean = torch.zeros_like(right)
    count = len(piece.tensors)
    with one_thread():
        for square, tensor, share in zip(grams, piece.tensors, shares or [1 / count] * count, strict=True):
            wide = tensor.double() * share
            total += square * share
            right += wide @ square
            mean += wide
        pull = max(TOWARDS_AVERAGE * columns / tokens, _ROUNDING) * float(total.diagonal().mean())
        try:
            factor = Ridge.of(total, pull).factor
        except SolveError as error:
            todo = "the owners send trunk contributions of more text"
            raise SolveError(error.what, where=piece.name, todo=todo) from error
        return torch.cholesky_solve((right + pull * mean).T, factor).T.to(piece.dtype)


def _shares(piece: Piece, files: Sequence[StatisticsFile]) -> Tensor:
    """[owners, rows] float64: how large a share of its domain's tokens each row's is, scaled to a sum of 1 over owners.

    Every token counts once more than it stood.
    """
    shares = []
    for file in files:
        counts = torch.from_numpy(file.array("token_counts")).double() + 1
        shares.append(counts[piece.start :][: len(piece.tensors[0])] / file.manifest.tokens)
    weights = torch.stack(shares)
    return weights / weights.sum(dim=0)


def _head(piece: Piece, owners: Sequence[ModuleGrams], tokens: int) -> Tensor:
    """Least squares row by row, domains weighted by `_shares`: an error of a token's logit costs about as much as the
    token has chance. Rows of about equal shares are solved together."""
    shares = _shares(piece, [owner.file for owner in owners])
    steps = (_STEPS * shares / shares.amax(dim=0)).round().int().T
    kinds, which = steps.unique(dim=0, return_inverse=True)
    grams = [owner.gram(piece.name) for owner in owners]
    merged = torch.empty(piece.tensors[0].shape, dtype=piece.dtype)
    for number, kind in enumerate(kinds.double()):
        rows = which == number
        part = replace(piece, tensors=[tensor[rows] for tensor in piece.tensors])
        merged[rows] = _least_squares(part, grams, tokens, (kind / kind.sum()).tolist())
    return merged


def _embedding(piece: Piece, files: Sequence[StatisticsFile]) -> Tensor:
    """Rows weighted by `_shares`."""
    weights = _shares(piece, files)
    merged = torch.empty(piece.tensors[0].shape, dtype=piece.dtype)
    for start in range(0, len(merged), _ROWS):
        rows = slice(start, start + _ROWS)
        parts = zip(weights, piece.tensors, strict=True)
        merged[rows] = sum(share[rows, None] * tensor[rows].double() for share, tensor in parts)
    return merged
