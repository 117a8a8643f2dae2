"""Heads: last norm and language model head of a version, from its ordered experts. No feature depends on them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor

from moerge.bodies.head_kinds import HEADS
from moerge.bodies.least_squares import least_squares
from moerge.bodies.methods.average import average
from moerge.bodies.methods.regmean import scaled, square
from moerge.bodies.pieces import Piece, merge_plan
from moerge.errors import IncompatibleExpertError
from moerge.memory.needs import HEAD_ROWS
from moerge.models.dense_files import Dense
from moerge.models.families.family import EMBEDDING, HEAD, Family
from moerge.models.reader import Checkpoint, Tensors
from moerge.models.stored import TensorSpec
from moerge.models.writer import TensorPlan
from moerge.threads import one_thread
from moerge_proto.bodies import HeadMethod
from moerge_proto.ranges import Source
from moerge_proto.statistics_file import StatisticsFile


@dataclass(frozen=True)
class SeedHead:
    """A seed's last norm and head; the rows of a tied one are its body's embedding."""

    head: Checkpoint
    body: Checkpoint

    @property
    def specs(self) -> Mapping[str, TensorSpec]:
        return {HEAD: self.body.specs[EMBEDDING], **self.head.specs}

    def tensor(self, name: str) -> Tensor:
        return self.head.tensor(name) if name in self.head.specs else self.body.tensor(EMBEDDING)


@dataclass(frozen=True)
class HeadInputs:
    """The inputs of a head.

    Attributes:
        experts: checkpoints with the ordered experts' last norms and heads; a tied head is the embedding. None: the
            expert's is the seed's.
        statistics: gives the head contributions of those with an own one, in that order; empty unless the method is
            solved.
        seed: the seed's head.
        body: its family is the experts', its embedding a tied head.
        as_embedding: whether the mean of tied heads is the body's embedding.
    """

    experts: Sequence[Checkpoint | None]
    statistics: Callable[[], Sequence[Source]]
    seed: Checkpoint | None
    body: Dense
    as_embedding: bool

    def models(self, method: HeadMethod) -> Sequence[Tensors]:
        """The models that the head is made from."""
        if method != "seed":
            return [item or SeedHead(self.seed_head, self.body.checkpoint) for item in self.experts]
        return [self.seed_head]

    def sources(self) -> list[Source | None]:
        """Each expert's head contribution; None without an own head."""
        given = iter(self.statistics())
        return [None if item is None else next(given) for item in self.experts]

    @property
    def seed_head(self) -> Checkpoint:
        """The seed's head; IncompatibleExpertError: there is none."""
        if self.seed is None:
            problem, todo = "the body isn't a seed's, so there is no seed's head", "choose another head"
            raise IncompatibleExpertError(problem, where="`head`", todo=todo)
        return self.seed


def is_tied(method: HeadMethod, inputs: HeadInputs) -> bool:
    """Tell whether the head is the body's embedding. Experts that all keep the seed's head give that, by any method."""
    if method == "seed" or all(item is None for item in inputs.experts):
        return HEAD not in inputs.seed_head.specs
    return method == "average" and inputs.as_embedding and all(HEAD not in own.specs for own in inputs.models(method))


def head_plan(method: HeadMethod, inputs: HeadInputs) -> list[TensorPlan]:
    """The head's tensors in the dense family's names, without a tied one. The rows are those of the body's embedding.

    `regmean`: norms are averaged; W = (sum_d G_d)^-1 sum_d G_d W_d (Jin et al., 2023), where G_d [H, H] is the gram of
    the head's input in domain d, with a mean diagonal of 1. An expert with the seed's head sends none: it counts with
    the mean of the others'.

    Raises:
        IncompatibleExpertError: no expert has as many rows as the embedding; or the seed's head is asked for without a
            seed.
    """
    models, family = inputs.models(method), inputs.body.family
    names = [family.final_norm] if is_tied(method, inputs) else family.head_names
    solved = HEADS[method].solved

    def merge(piece: Piece) -> Tensor:
        with one_thread():
            if solved and piece.name == HEAD:
                return _solved(piece, family, models, inputs.sources())
            return average(piece.tensors, piece.dtype)

    rows = inputs.body.checkpoint.specs[EMBEDDING].shape[0]
    return [_cut(plan, rows) if plan.name == HEAD else plan for plan in merge_plan(models, names, merge)]


def _cut(plan: TensorPlan, rows: int) -> TensorPlan:
    if plan.shape[0] < rows:
        problem = f"expected {rows} rows as in the body's embedding, found {plan.shape[0]} at most"
        raise IncompatibleExpertError(problem, where=HEAD, todo="merge a body of these experts")
    return TensorPlan(plan.name, plan.dtype, (rows, *plan.shape[1:]), lambda: plan.compute()[:rows])


def _solved(piece: Piece, family: Family, models: Sequence[Tensors], sources: Sequence[Source | None]) -> Tensor:
    with ExitStack() as stack:
        opened = [(expert, source) for expert in piece.experts if (source := sources[expert]) is not None]
        if not opened:
            return average(piece.tensors, piece.dtype)
        files = {expert: stack.enter_context(StatisticsFile(source)) for expert, source in opened}
        tokens = sum(file.manifest.tokens for file in files.values())
        norm = family.final_norm

        def gram(expert: int) -> Tensor:
            return scaled(square(files[expert], "head_input", 0, family.factors(norm, models[expert].tensor(norm))))

        some = len(files) < len(piece.experts)
        mean = sum(map(gram, files), torch.zeros(())) / len(files) if some else torch.zeros(())

        def grams() -> Iterator[Tensor]:
            for expert in piece.experts:
                yield gram(expert) if expert in files else mean

        def part(start: int) -> Tensor:
            tensors = [tensor[start : start + HEAD_ROWS] for tensor in piece.tensors]
            return least_squares(Piece(HEAD, start, piece.experts, tensors, piece.dtype), grams(), tokens)

        return torch.cat([part(start) for start in range(0, len(piece.tensors[0]), HEAD_ROWS)])
