"""The settings of a version's assembly and of a merge, and the sources of a merge."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from moerge.bodies.lineage import BodyOptions
from moerge.documents.corpus import Corpus
from moerge.documents.splits import HELD_OUT_SHARE
from moerge.merging.prompts import Prompts
from moerge.merging.report import SCORED_TOKENS
from moerge.models.expert_folder import DenseExpert
from moerge.models.keeping import Keeping
from moerge.statistics.contribution import Computing
from moerge.statistics.finisher import PLAIN, Finisher
from moerge_proto.recipes import RARE_BELOW, RECOMMENDED, VersionRecipe
from moerge_proto.statistics_file import StatisticsSettings

AUTO = "auto"
"""In place of a name of a chat template: the default."""


@dataclass(frozen=True)
class Source:
    """A domain's expert and its documents, or prompts by which the expert writes them.

    `held_out`: other documents to score; None: a share of the documents is held out and scored.
    """

    expert: DenseExpert
    corpus: Corpus | Prompts
    held_out: Corpus | None = None

    @property
    def generated(self) -> bool:
        return isinstance(self.corpus, Prompts)


@dataclass(frozen=True)
class VersionSettings:
    """The choices that determine a version, and the machine's resources.

    `body` has the options of the body's method, without its `base`; that is also the seed of a seed's body. Token
    counts below `rare_below` are withheld from body contributions, as in the recipes. `finisher`: makes router
    contributions of exact sums; one that isn't plain needs a key in `computing`. `chat_template`: see `Lineage`.
    `unfitted`: domains whose experts keep the seed's body, so that they need no fit; `seed_heads`: those of them that
    keep its head, too.
    """

    recipe: VersionRecipe = RECOMMENDED
    body: BodyOptions = field(default_factory=BodyOptions)
    base: DenseExpert | None = None
    statistics: StatisticsSettings = field(default_factory=StatisticsSettings)
    rare_below: int = RARE_BELOW
    computing: Computing = field(default_factory=Computing)
    finisher: Finisher = PLAIN
    chat_template: str | None = None
    unfitted: Collection[str] = ()
    seed_heads: Collection[str] = ()

    @property
    def router_statistics(self) -> StatisticsSettings:
        """The settings of router contributions, with the recipe's text before them, unless the finisher takes none."""
        before, context = self.recipe.before, self.statistics.context
        behind = self.statistics.model_copy(update={"before": None if before is None else before.within(context)})
        return self.finisher.settings(behind)


@dataclass(frozen=True)
class MergeSettings(VersionSettings):
    """The settings of a merge.

    Attributes:
        fit: whether new experts' MLPs are fitted to the body, in place of the recipe's `fit`; None: if the recipe says
            so, under a seed's body unless an expert keeps it, and to a body that stays as experts are added.
        automatic: whether the base's body replaces the recipe's if every expert keeps it.
        automatic_head: whether the base's head replaces the recipe's if every expert keeps body and head.
        keeping: by domain, the experts' comparison with the base; None: not made yet.
        scored_tokens: those per domain, of held-out documents; 0: no scores.
        chat_template: a domain, `base` or `auto`; None: that of the version that experts are added to, or `auto`.
    """

    fit: bool | None = None
    automatic: bool = False
    automatic_head: bool = False
    keeping: Mapping[str, Keeping] | None = None
    held_out_share: float = HELD_OUT_SHARE
    scored_tokens: int = SCORED_TOKENS
    keep_statistics: bool = False
