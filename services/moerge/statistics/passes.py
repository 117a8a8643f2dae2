"""The passes over an owner's documents, as data for their processes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from moerge.memory.needs import Need, passing
from moerge.memory.shapes import Shape
from moerge.models.bounds import factors, feature_gains, input_grams
from moerge.models.dense import DenseWeights, domain_weights, expert_weights
from moerge.models.dense_files import Dense, DenseFiles
from moerge.models.families.family import mlp_layers
from moerge.statistics.accumulate import Sum
from moerge_proto.statistics_file import Kind, StatisticsSettings, TextBefore


@dataclass(frozen=True)
class Input:
    """A module's input, of which a gram is summed.

    Attributes:
        module: the dense module; None for the head, which reads the final norm's output.
        gram: name of the gram in the statistics file.
        exponent: fractional bits of the sums.
        gains: [size], the divisors of the input; None without a norm before the module.
        cross: name of the sum of the inputs in the file, if it is needed.
        sum: makes a shard's empty sums.
    """

    module: str | None
    gram: str
    exponent: int
    gains: Tensor | None
    cross: str | None = None
    sum: Callable[[], Sum] = Sum


class OwnSums(Protocol):
    """Makes a layer's empty sums, of documents that pass the model alone."""

    def sum(self, layer: int, gains: Tensor | None) -> Sum: ...


@dataclass(frozen=True)
class RouterPass:
    """Features' grams and sums under a body, with the domain's own MLPs; `precision` is the model's dtype.

    `sums`: makes the sums; None: those of features, as they are.
    """

    kind: ClassVar[Kind] = "router"
    expert: DenseFiles
    body: Dense
    exponents: Sequence[int]
    precision: str = "float32"
    device: str = "cpu"
    before: TextBefore | None = None
    sums: OwnSums | None = None

    def weights(self) -> DenseWeights:
        return domain_weights(self.expert, self.body)

    def inputs(self) -> list[list[Input]]:
        """Per layer, in the order of computation and of the file."""
        gains, module = feature_gains(self.body), self.body.family.mlp_module
        modules = [module.format(layer=place) for place in mlp_layers(self.body.config)]

        def read(layer: int, bits: int) -> Input:
            at, own = f"layers.{layer}", self.sums
            sums = Sum if own is None else partial(own.sum, layer, gains[layer])
            return Input(modules[layer], f"{at}.gram", bits, gains[layer], f"{at}.cross", sums)

        return [[read(layer, bits)] for layer, bits in enumerate(self.exponents)]


@dataclass(frozen=True)
class _OwnPass:
    """A pass of the dense expert itself."""

    before: ClassVar[None] = None
    sums: ClassVar[None] = None
    expert: DenseFiles
    exponents: Sequence[int]
    precision: str = "float32"
    device: str = "cpu"

    def weights(self) -> DenseWeights:
        return expert_weights(self.expert)


@dataclass(frozen=True)
class BodyPass(_OwnPass):
    """Grams of the inputs of the expert's attention, and counts of tokens."""

    kind: ClassVar[Kind] = "body"

    def inputs(self) -> list[list[Input]]:
        """As in `RouterPass`."""
        result: list[list[Input]] = [[] for _ in mlp_layers(self.expert.config)]
        for gram, bits in zip(input_grams(self.expert)[1:], self.exponents, strict=True):
            gains = None if gram.gain is None else factors(self.expert, gram.gain)
            result[gram.layer].append(Input(gram.modules[0], gram.name, bits, gains))
        return result


@dataclass(frozen=True)
class HeadPass(_OwnPass):
    """The gram of the inputs of the expert's head. `body`: that of a seed of which `expert` has only the parts."""

    kind: ClassVar[Kind] = "head"
    body: Dense | None = None

    def weights(self) -> DenseWeights:
        return super().weights() if self.body is None else domain_weights(self.expert, self.body)

    def inputs(self) -> list[list[Input]]:
        """As in `RouterPass`; the head's input belongs to the last layer."""
        [bits], before = self.exponents, len(mlp_layers(self.expert.config)) - 1
        gains = factors(self.expert, self.expert.family.final_norm)
        return [*([] for _ in range(before)), [Input(None, "head_input", bits, gains)]]


Pass = RouterPass | BodyPass | HeadPass


def need_of(work: Pass, settings: StatisticsSettings, threads: int = 1) -> Need:
    shape = Shape.of(work.expert.config, getattr(torch, settings.precision))
    tokens = settings.model_copy(update={"before": work.before}).batch
    positions = 1 if work.before is None else 2
    is_body = isinstance(work, BodyPass)
    return passing(shape, tokens, body=is_body, threads=threads, device=work.device, positions=positions)
