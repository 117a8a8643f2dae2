"""The declaration of a body method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from moerge.bodies.lineage import BodyOptions
from moerge_proto.bodies import BodyMethod

if TYPE_CHECKING:
    from moerge.bodies.pieces import Rule
    from moerge.models.dense_files import Dense
    from moerge.models.reader import Checkpoint
    from moerge.models.writer import TensorPlan
    from moerge_proto.statistics_file import StatisticsFile


@dataclass(frozen=True)
class MethodInputs:
    """Opened inputs of a merge.

    Attributes:
        experts: in order.
        domains: of the experts, in their order.
        options: of the method.
        base: the checkpoint that `options.base` names.
        statistics: body contributions in the experts' order; empty unless the method is solved.
    """

    experts: Sequence[Dense]
    domains: Sequence[str]
    options: BodyOptions
    base: Checkpoint | None = None
    statistics: Sequence[StatisticsFile] = ()


@dataclass(frozen=True)
class Method:
    """A way to merge a body: a pure function of its inputs.

    Attributes:
        name: in requests and lineages.
        about: one phrase for help texts and forms.
        plan: the body's tensors, which can be written while the inputs are open.
        takes: allowed fields of BodyOptions; `needs`: the required ones.
        solved: whether it needs every expert's body contribution.
        is_seed: whether it takes one model's tensors and merges no experts.
        wide_copies: float64 copies of a tensor at a time, before it is merged.
        revision: raise it with a changed formula, so that no earlier body is reused.
        rule: of elementwise methods, the rule for one tensor; it merges MLPs too.
    """

    name: BodyMethod
    about: str
    plan: Callable[[MethodInputs], list[TensorPlan]]
    takes: frozenset[str] = frozenset()
    needs: frozenset[str] = frozenset()
    solved: bool = False
    is_seed: bool = False
    wide_copies: int = 0
    revision: int = 1
    rule: Callable[[MethodInputs], Rule] | None = None

    @property
    def takes_base(self) -> bool:
        """Whether it takes the base model, or is the seed's."""
        return self.is_seed or "base" in self.takes


def elementwise(
    name: BodyMethod,
    about: str,
    rule: Callable[[MethodInputs], Rule],
    *,
    takes: frozenset[str] = frozenset(),
    needs: frozenset[str] = frozenset(),
    wide_copies: int = 0,
) -> Method:
    """A method whose rule sees the elements of one tensor at a time."""
    return Method(name, about, partial(_planned, rule), takes, needs, wide_copies=wide_copies, rule=rule)


def _planned(rule: Callable[[MethodInputs], Rule], inputs: MethodInputs) -> list[TensorPlan]:
    from moerge.bodies.pieces import body_plan

    return body_plan(inputs.experts, rule(inputs))
