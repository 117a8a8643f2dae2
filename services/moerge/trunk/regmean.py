"""RegMean trunks: every linear module outside the MLPs is the least-squares fit to what the experts' own computes on
their own inputs, W = (sum_d W_d G_d) (sum_d G_d)^-1 (Jin et al., 2023), from the owners' trunk contributions."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from transformers import PretrainedConfig

from moerge.errors import IncompatibleExpertError, SolveError
from moerge.models.bounds import input_gain_names
from moerge.models.families import EMBEDDING, HEAD, Family
from moerge.models.reader import Checkpoint
from moerge.models.writer import TensorPlan
from moerge.routers.ridge import Ridge
from moerge.statistics.integers import to_floats, unpack
from moerge.threads import one_thread
from moerge.trunk.average import average
from moerge.trunk.context_head import WIDTH, with_context
from moerge.trunk.merge import Method, Piece, merge_plan
from moerge_proto.statistics_file import StatisticsFile, trunk_gram_names

_ROWS = 4096
_STEPS = 8
"""A token's shares are rounded to so many parts of the largest, so that many rows of the head have the same."""
TOWARDS_AVERAGE = 0.1
"""How strongly a solution is drawn to the average where hardly any token points: times dimensions per token, in units
of the summed grams' mean diagonal. Measured: much less lets few tokens mislead, much more costs quality with many."""
_ROUNDING = 1e-6
"""It is never drawn less than this, which lies above what float32 products leave of eigenvalues that should be zero."""
_TURN_PULL = 1e-3
TURNS = 1
"""How often the head is solved and turned before it is solved for good. Measured: more than once costs quality."""


class ModuleGrams:
    """The grams of one owner's trunk contribution, by the modules that read what was summed; read one at a time."""

    def __init__(self, expert: Checkpoint, file: StatisticsFile, family: Family, config: PretrainedConfig) -> None:
        self.expert, self.file = expert, file
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
            wide = self.expert.tensor(gain).double()
            square = wide[:, None] * square * wide
        return square / square.diagonal().mean().clamp_min(1e-300)

    def _expert_columns(self, weight: str) -> int:
        return self.expert.specs[weight if weight in self.expert.specs else EMBEDDING].shape[1]


def solved_plan(
    owners: Sequence[ModuleGrams],
    family: Family,
    config: PretrainedConfig,
    *,
    turned: bool = False,
    context: bool = False,
) -> list[TensorPlan]:
    """The trunk's tensors, as `merge_plan` has them, from each ordered expert's trunk contribution.

    `turned` is for MLPs that their owners fit to the trunk, see `regmean`; `context` adds a context head, where the
    family can have one, and where every owner's documents are longer on average than the head looks back: statistics of
    first tokens don't show what it does later in a text.

    Raises:
        IncompatibleExpertError: `turned`, but the family's MLPs can't be fitted.
    """
    if turned and family.gain is None:
        found = f"{family.model_type} normalises what its MLPs answer, so that they can't be fitted"
        raise IncompatibleExpertError(found, where="method", todo="merge the trunk by regmean")
    experts = [owner.expert for owner in owners]
    plans = merge_plan(experts, family, config.num_hidden_layers, regmean(owners, turned=turned), own_head=True)
    sizes = [owner.file.manifest for owner in owners]
    if not context or any(size.tokens < WIDTH * size.documents for size in sizes):
        return plans
    return with_context(plans, [_counts(owner.file) for owner in owners], family, config)


def regmean(owners: Sequence[ModuleGrams], *, turned: bool = False) -> Method:
    """The method, over each ordered expert's trunk contribution.

    Each domain's grams have a mean diagonal of 1, so that domains count alike. Embedding rows are weighted by how large
    a share of its domain's tokens each token is, and so are the domains in the least squares of each of the head's
    rows; norms and biases are averaged.

    An MLP that is fitted to the trunk ends in what the trunk's head reads best, which is what the expert's own head
    reads times a `turn`. So with `turned` the head is solved once more, for the vectors that it then reads. A
    vocabulary's pieces must come in order.
    """
    turns: dict[int, Tensor] = {}

    def merge(piece: Piece) -> Tensor:
        those = [owners[expert] for expert in piece.experts]
        if piece.name == EMBEDDING:
            return _embedding(piece, [owner.file for owner in those])
        tokens = sum(owner.file.manifest.tokens for owner in those)
        if piece.name == HEAD:
            if turned and piece.start == 0:
                for _ in range(TURNS):
                    head = _head(piece, those, tokens, turns)
                    with one_thread():
                        for expert, own, owner in zip(piece.experts, piece.tensors, those, strict=True):
                            turns[expert] = turn(head, own, _counts(owner.file)[: len(own)])
            return _head(piece, those, tokens, turns)
        if piece.name in those[0]:
            return _least_squares(piece, ((gram, gram) for gram in (each.gram(piece.name) for each in those)), tokens)
        return average(piece.tensors, piece.dtype)

    return merge


def turn(trunk: Tensor, own: Tensor, counts: Tensor) -> Tensor:
    """[H, H] float64: what takes the vectors that an expert's head reads to those to which the trunk's head answers as
    nearly as it can the same.

    Near in the logits' variance under the tokens' frequencies, which is what small errors cost a softmax.

    Args:
        trunk: the trunk's head, [V, H].
        own: the expert's, [V, H].
        counts: [V] float64, how often each token stood in the domain's text.
    """
    chances = (counts + 1) / (counts + 1).sum()
    hidden = trunk.shape[1]
    square, cross = (torch.zeros(hidden, hidden, dtype=torch.float64, device=trunk.device) for _ in range(2))
    for start in range(0, len(trunk), _ROWS):
        rows = slice(start, start + _ROWS)
        weighted = trunk[rows].double() * chances[rows, None]
        square += weighted.T @ trunk[rows].double()
        cross += weighted.T @ own[rows].double()
    mean, other = (chances @ head.double() for head in (trunk, own))
    square -= torch.outer(mean, mean)
    cross -= torch.outer(mean, other)
    pull = _TURN_PULL * square.diagonal().mean() * torch.eye(hidden, dtype=torch.float64, device=trunk.device)
    solution: Tensor = torch.linalg.solve(square + pull, cross + pull)
    return solution


def _least_squares(
    piece: Piece, grams: Iterable[tuple[Tensor, Tensor]], tokens: int, shares: Sequence[float] | None = None
) -> Tensor:
    """[out, in]: argmin over W of sum_d s_d E_d |W y - W_d x|^2, drawn slightly to the mean by `shares` s.

    Args:
        grams: sums of x y^T and of y y^T of each domain, [in, in] float64 each, one domain's in memory at a time.
        tokens: that all grams were summed over.
        shares: one per expert of the piece, with a sum of 1; equal by default.
    """
    rows, columns = piece.tensors[0].shape
    total = torch.zeros(columns, columns, dtype=torch.float64)
    right = torch.zeros(rows, columns, dtype=torch.float64)
    mean = torch.zeros_like(right)
    count = len(piece.tensors)
    with one_thread():
        for (cross, square), tensor, share in zip(grams, piece.tensors, shares or [1 / count] * count, strict=True):
            wide = tensor.double() * share
            total += square * share
            right += wide @ cross
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
        shares.append((_counts(file)[piece.start :][: len(piece.tensors[0])] + 1) / file.manifest.tokens)
    weights = torch.stack(shares)
    return weights / weights.sum(dim=0)


def _counts(file: StatisticsFile) -> Tensor:
    """[V] float64: how often each token stood."""
    return torch.from_numpy(file.array("token_counts")).double()


def _head(piece: Piece, owners: Sequence[ModuleGrams], tokens: int, turns: Mapping[int, Tensor]) -> Tensor:
    """Least squares row by row, domains weighted by `_shares`: an error of a token's logit costs about as much as the
    token has chance. Rows of about equal shares are solved together. Vectors are turned by their expert's turn, if it
    has one."""
    shares = _shares(piece, [owner.file for owner in owners])
    steps = (_STEPS * shares / shares.amax(dim=0)).round().int().T
    kinds, which = steps.unique(dim=0, return_inverse=True)
    grams = []
    for expert, gram in zip(piece.experts, (owner.gram(piece.name) for owner in owners), strict=True):
        turned = gram if expert not in turns else gram @ turns[expert].T
        grams.append((turned, turned if expert not in turns else turns[expert] @ turned))
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
