"""A merge's checks and costs, without its work: nothing is written."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import torch

from moerge.documents.shards import enough
from moerge.experts.sample import need_of as fitting_need
from moerge.experts.sample import tokens_that_fit
from moerge.files import LOCK, work_folder
from moerge.memory.machine import free_for
from moerge.memory.needs import Need, merging, solving
from moerge.memory.shapes import Shape
from moerge.merging.checks import check
from moerge.merging.costs import Costs, PassCost
from moerge.merging.kept import KeptVersion
from moerge.merging.local import LocalTrunk
from moerge.merging.merge import settings_of
from moerge.merging.prompts import Prompts, checked, require_memory
from moerge.merging.settings import MergeSettings, Source
from moerge.merging.texts import read_text
from moerge.models.bounds import feature_exponents, input_exponents
from moerge.models.expert_folder import DenseExpert
from moerge.statistics.contribution import room_of
from moerge.statistics.estimate import estimate, largest
from moerge.statistics.passes import Pass, RouterPass, TrunkPass
from moerge.statistics.streamed import Streamed
from moerge.trunk.methods.registry import METHODS


def merge(
    sources: Sequence[Source],
    out: Path,
    settings: MergeSettings | None = None,
    say: Callable[[str], None] = lambda text: None,
    version: KeptVersion | None = None,
) -> Costs:
    """Checks a merge or an addition, and tells its costs; arguments and errors are those of `moerge.merging.merge`."""
    settings = settings_of(out, settings or MergeSettings(), version)
    disk, trunk = check(sources, out, settings, version), None if version is None else version.trunk
    texts, passes = [_Text.of(settings, source, say) for source in sources], _Passes(settings)
    experts, solved = [item.expert for item in texts], METHODS[settings.recipe.method].solved and trunk is None
    costs = [passes.cost(item, _trunk_pass(settings, item.expert)) for item in texts if solved]
    costs += [passes.cost(item, _router_pass(settings, item.expert, trunk)) for item in texts]
    memory = {item.writing.work: item.writing.total() for item in texts if item.writing is not None}
    memory |= {need.work: need.total(tokens) for need, tokens in _other_steps(settings, experts, trunk)}
    return Costs(str(out), costs, memory, disk, [*_unknown(out, texts)])


def _other_steps(
    settings: MergeSettings, experts: Sequence[DenseExpert], trunk: LocalTrunk | None
) -> Iterator[tuple[Need, int]]:
    """The memory of the steps that read no text for sums, each with a number of tokens.

    `trunk`: of the version that experts are added to; None: one is merged.
    """
    recipe = settings.recipe
    shape, cores = Shape.of(experts[0].config, _widest(experts)), torch.get_num_threads()
    if trunk is None:
        yield merging(shape, len(experts), METHODS[recipe.method], cores), 0
    if recipe.fit:
        needs = [fitting_need(expert, settings.statistics, settings.computing.device) for expert in experts]
        need, free = max(needs, key=Need.total), free_for(settings.computing.device)
        yield need, tokens_that_fit(need, shape.hidden, free)
    yield solving(shape, cores), 0


def _widest(experts: Sequence[DenseExpert]) -> torch.dtype:
    """The widest number format of the experts' weights."""
    return max(
        (spec.dtype for expert in experts for spec in expert.checkpoint.specs.values()),
        key=lambda dtype: dtype.itemsize,
    )


@dataclass(frozen=True)
class _Text:
    """A domain's expert, the tokens of its statistics, and the memory to write their text; None: it exists."""

    expert: DenseExpert
    tokens: int
    writing: Need | None = None

    @classmethod
    def of(cls, settings: MergeSettings, source: Source, say: Callable[[str], None]) -> Self:
        if not isinstance(source.corpus, Prompts):
            return cls(source.expert, read_text(source, settings, say).tokens)
        checked(source.expert, source.corpus, settings.statistics.context)
        return cls(source.expert, source.corpus.tokens, require_memory(source.expert, settings.computing.device))


def _trunk_pass(settings: MergeSettings, expert: DenseExpert) -> TrunkPass:
    return TrunkPass(expert, input_exponents(expert), settings.statistics.precision, settings.computing.device)


def _router_pass(settings: MergeSettings, expert: DenseExpert, trunk: LocalTrunk | None) -> RouterPass:
    """Under the trunk, or the expert's own, which has the same shapes."""
    exponents = feature_exponents(expert) if trunk is None else trunk.exponents
    precision, device = settings.statistics.precision, settings.computing.device
    return RouterPass(expert, trunk or expert, exponents, precision, device)


@dataclass
class _Passes:
    """The costs of passes. The experts are alike, so a kind's pace is measured once for a number of threads."""

    settings: MergeSettings
    _paces: dict[tuple[type[Pass], int], float] = field(default_factory=dict)

    def cost(self, text: _Text, work: Pass) -> PassCost:
        settings, computing = self.settings.statistics, self.settings.computing
        threads, room = room_of(work, settings, computing, text.tokens)
        busy = min(threads, max(1, text.tokens // enough(int(text.expert.config.hidden_size))))
        if (measured := (type(work), busy)) not in self._paces:
            with computing.progress.track(f"measuring a layer of the {work.kind} pass", 1, "layers") as tracker:
                self._paces[measured] = Streamed(work, settings.batch_tokens, busy).pace(largest(settings))
                tracker.advance(1)
        need, states = room.need, min(room.states, room.need.token * text.tokens)
        return PassCost(
            text.expert.domain,
            work.kind,
            need.on_device,
            need.in_host + need.journal + states,
            estimate(work, room, text.tokens, 1 / self._paces[measured]),
        )


def _unknown(out: Path, texts: Sequence[_Text]) -> Iterator[str]:
    yield "Not included: the time of other steps than the passes, and scores."
    if written := [text.expert.domain for text in texts if text.writing is not None]:
        yield f"Unknown: the time to write the text of {', '.join(written)}; its tokens are the number asked for."
    work = work_folder(out)
    if any(path.name != LOCK for path in work.glob("*")):
        yield f"Included: work that an interrupted run has done; it is in {work}."
