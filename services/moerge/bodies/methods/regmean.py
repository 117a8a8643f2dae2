"""RegMean bodies, solved from the owners' body contributions.

Every linear module of attention is the least-squares fit to the experts' own outputs on their own inputs,
W = (sum_d W_d G_d) (sum_d G_d)^-1 (Jin et al., 2023). G_d [in, in] is the gram of a module's inputs in domain d.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moerge.bodies.methods.average import average
from moerge.bodies.methods.method import Method, MethodInputs

if TYPE_CHECKING:
    from torch import Tensor

    from moerge.bodies.pieces import Piece
    from moerge.models.bounds import InputGram
    from moerge.models.dense_files import Dense
    from moerge.models.writer import TensorPlan
    from moerge_proto.statistics_file import StatisticsFile


_ROWS = 4096


class ModuleGrams:
    """The grams of one owner's body contribution, by weight of the module, one at a time.

    They are read from the file, but the first layer's inputs' is computed from the counts that the file shows.
    """

    def __init__(self, expert: Dense, file: StatisticsFile) -> None:
        from moerge.models.bounds import input_grams

        self._dense, self.file = expert, file
        self._epsilon = float(getattr(expert.config, expert.family.epsilon))
        self._first, *grams = input_grams(expert)
        self._places = {gram: place for place, gram in enumerate(grams)}
        self._grams = {f"{module}.weight": gram for gram in (self._first, *grams) for module in gram.modules}

    def __contains__(self, weight: str) -> bool:
        return weight in self._grams

    def gram(self, weight: str) -> Tensor:
        """[in, in] float64 of the inputs of the module with that weight, scaled to a mean diagonal of 1."""
        return scaled(self._square(weight))

    def second_moment(self, weight: str) -> Tensor:
        """[in, in] float64: the mean over tokens; of the first layer's inputs over those with a shown count."""
        if self._grams[weight] is self._first:
            return self._of_first().div_(self._shown().sum())
        return self._square(weight).div_(self.file.manifest.tokens)

    def _shown(self) -> Tensor:
        """[V] float64, the counts that the file shows; ones if it shows none."""
        import torch

        counts = torch.from_numpy(self.file.array("token_counts")).double()
        return counts if counts.any() else torch.ones_like(counts)

    def _of_first(self) -> Tensor:
        """[H, H] float64: the gram of the first layer's inputs, which are functions of the token alone."""
        import torch

        from moerge.models.families.family import EMBEDDING

        counts, embedding = self._shown(), self._dense.checkpoint.tensor(EMBEDDING)
        result = torch.zeros(embedding.shape[1], embedding.shape[1], dtype=torch.float64)
        factors = self._factors(self._first)
        gain = None if factors is None else factors.double()
        factor = self._dense.family.ends.factor(self._dense.config, torch.float32)
        for tokens in counts.nonzero()[:, 0].split(_ROWS):
            rows = embedding[tokens].double() * factor
            if gain is not None:
                rows *= torch.rsqrt(rows.square().mean(dim=1, keepdim=True) + self._epsilon) * gain
            result += (rows * counts[tokens, None]).T @ rows
        return result

    def _square(self, weight: str) -> Tensor:
        gram = self._grams[weight]
        if gram is self._first:
            return self._of_first()
        return square(self.file, gram.name, self._places[gram], self._factors(gram))

    def _factors(self, gram: InputGram) -> Tensor | None:
        from moerge.models.bounds import factors

        return None if gram.gain is None else factors(self._dense, gram.gain)


def square(file: StatisticsFile, name: str, place: int, gain: Tensor | None) -> Tensor:
    """[in, in] float64: a file's gram of that name, of which `place` is the exponent's, times the gains [in]."""
    from moerge.statistics.integers import square_of

    result = square_of(file.array(name), file.manifest.exponents[place])
    if gain is not None:
        wide = gain.double()
        result.mul_(wide[:, None]).mul_(wide)
    return result


def scaled(gram: Tensor) -> Tensor:
    """The gram with a mean diagonal of 1, in place."""
    return gram.div_(gram.diagonal().mean().clamp_min(1e-300))


def plan(inputs: MethodInputs) -> list[TensorPlan]:
    """The body's tensors from each ordered expert's body contribution.

    Each domain's grams have a mean diagonal of 1, so that domains have equal weight. `row_shares` weight embedding
    rows. Norms and biases are averaged.
    """
    from moerge.bodies.least_squares import least_squares, weighted_rows
    from moerge.bodies.pieces import body_plan
    from moerge.models.families.family import EMBEDDING
    from moerge.threads import one_thread

    owners = list(map(ModuleGrams, inputs.experts, inputs.statistics))

    def merge(piece: Piece) -> Tensor:
        having = [owners[expert] for expert in piece.experts]
        with one_thread():
            if piece.name == EMBEDDING:
                return weighted_rows(piece, [owner.file for owner in having])
            if piece.name in having[0]:
                tokens = sum(owner.file.manifest.tokens for owner in having)
                return least_squares(piece, (owner.gram(piece.name) for owner in having), tokens)
            return average(piece.tensors, piece.dtype)

    return body_plan(inputs.experts, merge)


METHODS = (Method("regmean", "least squares on owners' grams", plan, solved=True, revision=3),)
