"""RegMean bodies, solved from the owners' body contributions; for fitted MLPs with a head of their own.

Every linear module outside the MLPs is the least-squares fit to the experts' own outputs on their own inputs,
W = (sum_d W_d G_d) (sum_d G_d)^-1 (Jin et al., 2023). G_d [in, in] is the gram of a module's inputs in domain d.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from moerge.errors import IncompatibleExpertError
from moerge.trunk.methods.average import average
from moerge.trunk.methods.method import Method, MethodInputs

if TYPE_CHECKING:
    from torch import Tensor

    from moerge.models.dense_files import Dense
    from moerge.models.writer import TensorPlan
    from moerge.trunk.least_squares import Grams
    from moerge.trunk.pieces import Piece, Rule
    from moerge_proto.statistics_file import StatisticsFile

ALIGNMENTS = 1
"""Number of head solves for alignment before the last solve. Measured: more than one costs quality."""


class ModuleGrams:
    """The grams of one owner's body contribution, by weight of the module; read from the file one at a time."""

    def __init__(self, expert: Dense, file: StatisticsFile) -> None:
        from moerge.models.bounds import input_gain_names
        from moerge.models.families import HEAD
        from moerge_proto.statistics_file import body_gram_names

        self.expert, self.file = expert.checkpoint, file
        layers, attention = expert.config.num_hidden_layers, expert.family.attention
        self._places = dict(zip(body_gram_names(layers), enumerate(input_gain_names(expert)), strict=True))
        self._sums = {HEAD: "head_input"}
        for layer in range(layers):
            for module in attention.inputs:
                self._sums[module.format(layer=layer) + ".weight"] = f"layers.{layer}.attention_input"
            self._sums[attention.output.format(layer=layer) + ".weight"] = f"layers.{layer}.attention_output"

    def __contains__(self, weight: str) -> bool:
        return weight in self._sums

    def gram(self, weight: str) -> Tensor:
        """[in, in] float64 of the inputs of the module with that weight, scaled to a mean diagonal of 1."""
        square = self._square(weight)
        return square.div_(square.diagonal().mean().clamp_min(1e-300))

    def second_moment(self, weight: str) -> Tensor:
        """[in, in] float64: the mean over tokens."""
        return self._square(weight).div_(self.file.manifest.tokens)

    def _square(self, weight: str) -> Tensor:
        from moerge.statistics.integers import square_of

        name = self._sums[weight]
        place, gain = self._places[name]
        square = square_of(self.file.array(name), self.file.manifest.exponents[place])
        if gain is not None:
            wide = self.expert.tensor(gain).double()
            square.mul_(wide[:, None]).mul_(wide)
        return square


def plan(inputs: MethodInputs, *, for_fitted_mlps: bool = False) -> list[TensorPlan]:
    """The body's tensors from each ordered expert's body contribution.

    Args:
        for_fitted_mlps: solves the head for MLPs that owners fit to the body, see `regmean`.

    Raises:
        IncompatibleExpertError: with `for_fitted_mlps`, if the family's MLPs can't be fitted.
    """
    from moerge.trunk.pieces import merge_plan

    family = inputs.experts[0].family
    if for_fitted_mlps and family.gain is None:
        what = f"{family.model_type} normalises the outputs of its MLPs, so they can't be fitted"
        raise IncompatibleExpertError(what, where="method", todo="use the method regmean")
    owners = list(map(ModuleGrams, inputs.experts, inputs.statistics))
    return merge_plan(inputs.experts, regmean(owners, for_fitted_mlps=for_fitted_mlps), own_head=True)


def regmean(owners: Sequence[Grams], *, for_fitted_mlps: bool = False) -> Rule:
    """The rule over each ordered expert's body contribution.

    Each domain's grams have a mean diagonal of 1, so that domains have equal weight. `row_shares` weight embedding rows
    and the domains in the least squares of each row of the head. Norms and biases are averaged.

    A fitted MLP is fitted to the output vectors that suit the body's head best: the expert's own times its
    `head_alignment`. So with `for_fitted_mlps` the head is solved once more, for the aligned vectors. A vocabulary's
    pieces must come in order.
    """
    from moerge.models.families import EMBEDDING, HEAD
    from moerge.threads import at_once, one_thread
    from moerge.trunk.least_squares import counts_of, head_alignment, least_squares, solved_head, weighted_rows

    alignments: dict[int, Tensor] = {}  # expert -> [H, H] float64
    threads = at_once()

    def merge(piece: Piece) -> Tensor:
        having = [owners[expert] for expert in piece.experts]
        if piece.name == EMBEDDING:
            return weighted_rows(piece, [owner.file for owner in having])
        tokens = sum(owner.file.manifest.tokens for owner in having)
        if piece.name == HEAD:
            if for_fitted_mlps and piece.start == 0:
                for _ in range(ALIGNMENTS):
                    head = solved_head(piece, having, tokens, alignments, threads)
                    for expert, tensor, owner in zip(piece.experts, piece.tensors, having, strict=True):
                        alignments[expert] = head_alignment(head, tensor, counts_of(owner.file)[: len(tensor)])
            return solved_head(piece, having, tokens, alignments, threads)
        if piece.name in having[0]:
            return least_squares(piece, ((gram, gram) for gram in (item.gram(piece.name) for item in having)), tokens)
        return average(piece.tensors, piece.dtype)

    def alone(piece: Piece) -> Tensor:
        with one_thread():
            return merge(piece)

    return alone


METHODS = (
    Method("regmean", "least squares on owners' grams", plan, solved=True, revision=2),
    Method(
        "regmean-fitted",
        "regmean for fitted MLPs (worker run --fit)",
        partial(plan, for_fitted_mlps=True),
        solved=True,
        for_fitted_mlps=True,
        revision=3,
    ),
)
