"""The input and the output of recipes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import Tensor

from moerge.errors import MoergeError
from moerge.merging.local_lineages import LocalBody
from moerge.progress import NoProgress, Progress
from moerge.scoring.perplexity import Rows, Window
from moerge_lab.training.job import Trained
from moerge_lab.training.parameters import Which
from moerge_proto.recipes import VersionRecipe

Value = float | str
"""A number, or one of an option's words."""
Options = Mapping[str, Value]
"""All options of a recipe, by name."""
Numbers = Mapping[str, float]
"""Options with numbers."""
SEED = "seed"
"""The option that adds the seed model to a recipe's experts."""
NO_ROWS = torch.empty(0, 0, dtype=torch.int64)
Likelihoods = dict[tuple[Path, tuple[int, ...]], Tensor]
"""Dense expert's folder and token ids -> log p of every token except the first, [T - 1] float64."""


@dataclass(frozen=True)
class Shared:
    """Results that several recipes need, computed once for a table, by all of their inputs.

    Attributes:
        folder: of bodies and head contributions; None: every recipe computes its own.
    """

    folder: Path | None = None
    bodies: dict[tuple[object, ...], LocalBody] = field(default_factory=dict)
    heads: dict[tuple[object, ...], list[Path]] = field(default_factory=dict)
    likelihoods: Likelihoods = field(default_factory=dict)
    made: dict[tuple[object, ...], Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Domain:
    """One domain's expert, and its texts as documents of token ids, at most as long as the context.

    Attributes:
        statistics: text for statistics; never scored.
        other: other text of the domain, for statistics out of distribution.
        tuning: windows for the choice of settings, cut like the scored ones, from text used for nothing else.
        training: rows of text for trained recipes, [n, context] int64.
    """

    name: str
    expert: Path
    statistics: Sequence[list[int]]
    other: Sequence[list[int]] = ()
    tuning: Sequence[Window] = ()
    training: Tensor = NO_ROWS


@dataclass(frozen=True)
class Fleet:
    """The input of a recipe.

    Attributes:
        domains: all experts have one tokenizer and, for most recipes, one architecture.
        base: folder of the seed model, for recipes with task vectors.
        seed: of the recipe's random numbers.
        work: an empty folder of the recipe, removed after it was scored.
    """

    domains: Sequence[Domain]
    base: Path | None
    seed: int
    work: Path
    device: str = "cpu"
    shared: Shared = field(default_factory=Shared)
    progress: Progress = field(default_factory=NoProgress)

    @property
    def seed_model(self) -> Path:
        """The base; an error if it is missing."""
        if self.base is None:
            raise MoergeError("the seed model is missing", where="`base`", todo="name its folder")
        return self.base


class Model(Protocol):
    """The product of a recipe: a model, or an ensemble. Recipes' models are subclasses."""

    chosen: Numbers = MappingProxyType({})
    """Options that the recipe chose by the tuning text."""
    active_parameters: float
    """Average number of parameters that a token is multiplied by, with experts, routing and head, without embedding."""
    reads_domain: bool = False
    """Whether it needs `rows.domain`: an oracle, or specialists without a model for other text."""
    trained: Trained | None = None

    def losses(self, rows: Rows) -> Tensor:
        """[B, T - 1], see `Losses`."""


def number(options: Options, name: str) -> float:
    return float(options[name])


def word(options: Options, name: str) -> str:
    return str(options[name])


def whole(options: Options, name: str, least: int, most: float = inf) -> int:
    """An integer option; an error unless it is between two bounds."""
    value = number(options, name)
    if value != int(value) or not least <= value <= most:
        between = f"between {least} and {most:g}" if most < inf else f"of at least {least}"
        raise MoergeError(f"{name} is {value:g}", where="`recipe`", todo=f"give an integer {between}")
    return int(value)


Chosen = Callable[[Fleet, Options], Numbers]
"""The options that the tuning text chooses."""


def nothing_chosen(fleet: Fleet, options: Options) -> Numbers:
    return {}


TextOf = Callable[[Domain], Sequence[list[int]]]
"""A domain's text for router contributions."""


statistics_text: TextOf = attrgetter("statistics")
other_text: TextOf = attrgetter("other")


@dataclass(frozen=True)
class Parts:
    """The choices of a version, by the table's options: recipe, text of router contributions, and chosen options.

    `fits_newcomers`: as `moerge merge --add` does.
    """

    recipe: Callable[[Options], VersionRecipe]
    texts: TextOf = statistics_text
    chosen: Chosen = nothing_chosen
    fits_newcomers: bool = False


@dataclass(frozen=True)
class Recipe:
    """A named way to build models.

    Attributes:
        source: paper and section or equation.
        build: yields (row of the table, model), one in memory at a time.
        options: with defaults.
        words: the allowed words of an option without numbers.
        uses_text: it takes statistics from the domains' texts, which differ by seed.
        drawn: it draws random numbers, so that seeds differ even with the same texts.
        reads_ahead: it chooses experts by the whole window, including scored tokens.
        asked_only: it runs only if named.
        trains: its trainable parameters; None: it isn't trained.
        any_architecture: experts may differ in architecture, but not in the tokenizer.
        specialises: it makes a model per domain, from a sample of that domain's text in place of statistics.
        parts: the choices of a recipe that publishes a version with solved routers.
    """

    name: str
    source: str
    build: Callable[[Fleet, Options], Iterator[tuple[str, Model]]]
    options: Options = field(default_factory=dict)
    words: Mapping[str, Sequence[str]] = field(default_factory=dict)
    uses_text: bool = True
    drawn: bool = False
    needs_base: bool = False
    needs_other: bool = False
    reads_ahead: bool = False
    asked_only: bool = False
    trains: Which | None = None
    any_architecture: bool = False
    specialises: bool = False
    parts: Parts | None = None
