"""What every recipe is handed, and what it makes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Protocol

from torch import Tensor

from moerge.errors import MoergeError
from moerge.merging.local import LocalTrunk
from moerge.models.expert_folder import DenseExpert
from moerge.recipes.precision import Dtype
from moerge.scoring.perplexity import Rows, Window

Options = Mapping[str, float]
"""Numbers that a recipe takes, by name; all of those that it has."""
SEED = "seed"
"""The option by which the seed model is one of a recipe's experts."""
Likelihoods = dict[tuple[Path, Dtype, tuple[int, ...]], Tensor]
"""Dense expert's folder, number format and token ids -> log p of every token but the first, [T - 1] float64."""


@dataclass(frozen=True)
class Shared:
    """Results that several recipes need, computed once for a table.

    Attributes:
        folder: of trunks; None: every recipe merges its own.
        trunks: solved trunks in it, by all that decides them.
        likelihoods: of texts under dense experts.
    """

    folder: Path | None = None
    trunks: dict[tuple[object, ...], LocalTrunk] = field(default_factory=dict)
    likelihoods: Likelihoods = field(default_factory=dict)


@dataclass(frozen=True)
class Domain:
    """One domain's expert, and its texts as documents of token ids, none longer than the context.

    Attributes:
        name: of the domain.
        expert: dense checkpoint folder.
        statistics: text that statistics may come from; never what is scored.
        other: other text of the domain, for statistics out of distribution; may be empty.
        tuning: windows by which a recipe may choose its settings, cut as the scored ones, of text that is neither of
            statistics nor scored; may be empty.
    """

    name: str
    expert: Path
    statistics: Sequence[list[int]]
    other: Sequence[list[int]] = ()
    tuning: Sequence[Window] = ()


@dataclass(frozen=True)
class Fleet:
    """What a recipe is built from.

    Attributes:
        domains: in order; all experts are of one architecture and vocabulary.
        base: folder of the dense model that all experts were trained from, for recipes with task vectors.
        seed: of all that the recipe draws.
        work: an empty folder of the recipe's own, which is removed once it has been scored.
        device: torch device that models compute on.
        dtype: number format of the models that recipes make.
        shared: by recipes and seeds.
    """

    domains: Sequence[Domain]
    base: Path | None
    seed: int
    work: Path
    device: str = "cpu"
    dtype: Dtype = "float32"
    shared: Shared = field(default_factory=Shared)


class Model(Protocol):
    """The product of a recipe: a model, or an ensemble. Recipes' models are subclasses."""

    chosen: Options = MappingProxyType({})
    """Options that the recipe chose by the tuning text."""
    active_parameters: float
    """How many parameters a token is multiplied by, on average: of every expert that runs for it, and of its routing.
    Embedding rows are looked up, not multiplied by; a head is multiplied by."""
    reads_domain: bool = False
    """True if it looks at `rows.domain`; only an oracle may."""

    def losses(self, rows: Rows) -> Tensor:
        """[B, T - 1], as `Losses` has it."""


def whole(options: Options, name: str, least: int, most: float = inf) -> int:
    """An option that must be a whole number between two.

    Raises:
        MoergeError: it isn't.
    """
    value = options[name]
    if value != int(value) or not least <= value <= most:
        between = f"between {least} and {most:g}" if most < inf else f"of at least {least}"
        raise MoergeError(f"{name} is {value:g}", where="--recipe", todo=f"give a whole number {between}")
    return int(value)


Chosen = Callable[[Fleet, Options], Options]
"""The options that are chosen by the tuning text."""


def nothing_chosen(fleet: Fleet, options: Options) -> Options:
    return {}


class Member(NamedTuple):
    """An owner's part in a version: an expert, whose MLPs it has, and the file of a router contribution."""

    expert: DenseExpert
    contribution: Path


@dataclass(frozen=True)
class Parts:
    """A version in the steps that it is made in, so that experts can join one that is there.

    Attributes:
        trunk: merged from the fleet's experts, in the fleet's folder.
        contribute: what the owner of a slot of the fleet does behind a trunk, whoever is in that.
        solve: the routers of these members, [D, H] per layer, in their order.
        chosen: the options that the other steps need chosen.
    """

    trunk: Callable[[Fleet, Options], LocalTrunk]
    contribute: Callable[[Fleet, int, LocalTrunk, Options], Member]
    solve: Callable[[Sequence[Member], LocalTrunk, Options], list[Tensor]]
    chosen: Chosen = nothing_chosen


@dataclass(frozen=True)
class Recipe:
    """A named way to build models.

    Attributes:
        source: paper and section or equation.
        build: yields (row of the table, model), one in memory at a time.
        options: what it takes, with defaults.
        uses_text: whether it takes statistics from the domains' texts, so that seeds differ by what those draw of them.
        drawn: whether it draws something itself, so that seeds differ even with the same texts.
        needs_base: whether it starts from the common base model.
        needs_other: whether it takes other text of the domains.
        reads_ahead: whether it chooses experts by the whole window, so by what it is then scored on too.
        asked_only: whether it is left out unless it is named.
        parts: of those that publish a version with solved routers, how.
    """

    name: str
    source: str
    build: Callable[[Fleet, Options], Iterator[tuple[str, Model]]]
    options: Options = field(default_factory=dict)
    uses_text: bool = True
    drawn: bool = False
    needs_base: bool = False
    needs_other: bool = False
    reads_ahead: bool = False
    asked_only: bool = False
    parts: Parts | None = None
