"""Stray: a body's distance from an owner's own expert, measured before any computation under the body."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from moerge.errors import IncompatibleExpertError
from moerge.models.dense import body_names
from moerge.models.dense_files import Dense
from moerge.models.distance import Powers
from moerge.models.families.family import EMBEDDING
from moerge.models.reader import Checkpoint
from moerge.trunk.methods.regmean import ModuleGrams
from moerge_proto.statistics_file import StatisticsFile

ROWS = 3.0
"""Bound of the stray of a single row, in units of the limit."""
SIZES = 0.4
"""Bound of the change of a tensor's size, in units of the limit."""
_TODO = (
    "ask the operator which experts the body was merged from, and how; the next body is checked anew. Honest bodies"
    " measured 0.43 at most, in units of max_stray, and 1 by ties or dare at scale 1; raise max_stray in worker.toml's"
    " [policy] for such a body only"
)  # the figures are docs/worker.md's
_LEAST, _LEAST_EMBEDDING = 0.01, 0.25
"""Least power of a row in a relative distance, as a share of a typical row's. Embeddings of untrained tokens, such as
padding, are small."""


@dataclass(frozen=True)
class Furthest:
    value: float
    name: str


@dataclass(frozen=True)
class Stray:
    """The furthest tensor by each measure.

    `tensor`: the distance of outputs on the owner's text, relative to the smaller norm. `row`: the same for one row, or
    for one direction of the embedding. `size`: the larger outputs' norm divided by the smaller, minus 1.
    """

    tensor: Furthest
    size: Furthest
    row: Furthest

    def __str__(self) -> str:
        tensor, size, row = (f"{item.value:.3f} ({item.name})" for item in (self.tensor, self.size, self.row))
        return f"the body strays by {tensor}, in size by {size}, in a single row by {row}"


def require_near(expert: Dense, body: Dense, limit: float, grams: Path) -> Stray:
    """Requires a body with nearly the expert's outputs on the owner's own text.

    Attention heads are compared one by one by their outputs, ||(W - W_d) x||, so that no single head can be replaced.
    The embedding is compared by its rows, weighted by frequency, and norms by their
    gains. A distance is relative to the smaller norm, so a tensor near zero is as far as a large one. The limit is the
    same whether the body contains the expert or not, because only the coordinator knows that. Rows of other experts'
    longer vocabularies are not compared: this expert has no such tokens.

    Args:
        limit: of a tensor's stray. The limits of sizes and rows are `SIZES` and `ROWS` times as much.
        grams: a body contribution of this expert.

    Raises:
        IncompatibleExpertError: names the tensor that is missing, unknown, of another shape, not finite or too far.
    """
    own, merged, names = expert.checkpoint, body.checkpoint, body_names(expert)
    _require_shapes({name: own.specs[name].shape for name in names}, merged)
    with StatisticsFile(grams) as file:
        comparison = _Comparison(expert, merged, ModuleGrams(expert, file), limit)
        for attention in expert.family.attentions(expert.config):
            width = attention.head(expert.config)
            for module in attention.inputs:
                comparison.reading_heads(module, width)
            if attention.output is not None:
                comparison.writing_heads(attention.output, width)
        comparison.embedding()
        for name in names:
            comparison.rest(name)
    return comparison.report()


def _require_shapes(shapes: Mapping[str, tuple[int, ...]], merged: Checkpoint) -> None:
    """Requires exactly the tensors of these shapes; the embedding may have further rows."""
    rows = merged.shapes.get(EMBEDDING, ())[:1]
    for name, shape in shapes.items():
        longer = name == EMBEDDING and rows >= shape[:1]
        if merged.shapes.get(name) != ((*rows, *shape[1:]) if longer else shape):
            todo = "ask the operator to merge a body with your expert"
            raise IncompatibleExpertError("the body lacks it, or has another shape", where=name, todo=todo)
    if unknown := sorted(merged.specs.keys() - shapes.keys()):
        todo = "ask the operator how the body was merged"
        raise IncompatibleExpertError("your expert has no such tensor", where=unknown[0], todo=todo)


def _answers(moment: Tensor) -> Callable[[Tensor], Tensor]:
    """Mean squared outputs of rows for inputs with this second moment, [in, in]."""
    return lambda rows: ((rows @ moment) * rows).sum(dim=1).clamp_min(0)


class _Comparison:
    """The measures of all tensors so far. Each method measures one, and refuses it if it is too far."""

    def __init__(self, own: Dense, merged: Checkpoint, grams: ModuleGrams, limit: float) -> None:
        self._family, self._own = own.family, own.checkpoint
        self._merged, self._grams, self._limit = merged, grams, limit
        self._tensor = self._size = self._row = Furthest(0.0, "")
        self._compared = set[str]()

    def report(self) -> Stray:
        return Stray(self._tensor, self._size, self._row)

    def reading_heads(self, module: str, width: int) -> None:
        """Queries, keys or values with their bias, by their outputs, for each attention head."""
        name, bias = f"{module}.weight", f"{module}.bias"
        powers = self._answers(name)
        if bias in self._own.specs:
            powers += Powers.of(*self._pair(bias), torch.square)
        for part in powers.split(width):
            self._check(name, part)
            self._check_rows(name, part, float(part.one.mean()) * _LEAST)

    def writing_heads(self, module: str, width: int) -> None:
        """The output projection of attention: for each head, and for all heads together, row by row."""
        name = f"{module}.weight"
        before, after = self._pair(name)
        moment = self._grams.second_moment(name)
        for start in range(0, before.shape[1], width):
            of = slice(start, start + width)
            self._check(name, Powers.of(before[:, of], after[:, of], _answers(moment[of, of])))
        powers = self._answers(name)
        if f"{module}.bias" in self._own.specs:
            powers += Powers.of(*self._pair(f"{module}.bias"), torch.square)
        self._check(name, powers)
        self._check_rows(name, powers, float(powers.one.mean()) * _LEAST)

    def embedding(self) -> None:
        """The embedding: its rows, weighted by frequency, and single directions of the residual."""
        before, after = self._pair(EMBEDDING)
        counts = torch.from_numpy(self._grams.file.array("token_counts")).double() + 1
        frequency = counts / counts.sum()
        powers = Powers.of(before, after, lambda rows: rows.square().sum(dim=1))
        self._check(EMBEDDING, powers * frequency)
        self._check_rows(EMBEDDING, powers, float(powers.one @ frequency) * _LEAST_EMBEDDING)
        directions = Powers.of(before.T, after.T, lambda columns: columns.square() @ frequency)
        self._check_rows(EMBEDDING, directions, float(directions.one.mean()) * _LEAST)

    def rest(self, name: str) -> None:
        if name in self._compared:
            return
        powers = Powers.of(*self._pair(name), lambda rows: rows.reshape(len(rows), -1).square().sum(dim=1))
        self._check(name, powers)
        if len(self._own.specs[name].shape) == 2:
            self._check_rows(name, powers, float(powers.one.mean()) * _LEAST)

    def _answers(self, name: str) -> Powers:
        return Powers.of(*self._pair(name), _answers(self._grams.second_moment(name)))

    def _pair(self, name: str) -> tuple[Tensor, Tensor]:
        self._compared.add(name)
        before, after = (self._family.factors(name, model.tensor(name)) for model in (self._own, self._merged))
        return before, after[: len(before)]

    def _check(self, name: str, powers: Powers) -> None:
        self._tensor = self._within(self._tensor, Furthest(powers.distance(), name), self._limit, "")
        self._size = self._within(self._size, Furthest(powers.size(), name), SIZES * self._limit, "in size ")

    def _check_rows(self, name: str, powers: Powers, least: float) -> None:
        self._row = self._within(self._row, Furthest(powers.row(least), name), ROWS * self._limit, "in a single row ")

    def _within(self, before: Furthest, now: Furthest, limit: float, how: str) -> Furthest:
        if not now.value <= limit:
            problem = f"the body strays {how}by {now.value:.3g}; max_stray = {self._limit:g} allows {limit:g}"
            raise IncompatibleExpertError(problem, where=now.name, todo=_TODO)
        return max(before, now, key=lambda item: item.value)
