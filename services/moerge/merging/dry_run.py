"""A merge's checks and costs, without its work: nothing is written."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

import torch

from moerge.documents.shards import enough
from moerge.experts.sample import need_of as fitting_need
from moerge.experts.sample import tokens_that_fit
from moerge.files import LOCK
from moerge.memory.machine import free_for
from moerge.memory.needs import Need, merging, solving
from moerge.memory.shapes import Shape
from moerge.merging import adding
from moerge.merging.costs import Costs, PassCost
from moerge.merging.job import Job, MergeSettings, Source
from moerge.merging.kept import Kept
from moerge.merging.local import LocalTrunk
from moerge.merging.merge import check
from moerge.merging.prompts import Prompts, checked, require_memory
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
) -> Costs:
    """Checks a merge, and tells its costs; arguments and errors are those of `moerge.merging.merge.merge`."""
    job = Job(out, settings or MergeSettings(), say)
    return _costs(job, sources, check(job, sources))


def add(
    sources: Sequence[Source],
    version: Kept,
    out: Path,
    settings: MergeSettings | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Costs:
    """Checks an addition, and tells its costs; arguments and errors are those of `moerge.merging.adding.add`."""
    job = adding.job_of(version, out, settings or MergeSettings(), say)
    return _costs(job, sources, adding.check(job, version, sources), version.trunk)


def _costs(job: Job, sources: Sequence[Source], disk: int, trunk: LocalTrunk | None = None) -> Costs:
    """`trunk`: of the version that experts are added to; None: one is merged."""
    recipe, texts, passes = job.settings.recipe, [_Text.of(job, source) for source in sources], _Passes(job)
    experts, solved = [each.expert for each in texts], METHODS[recipe.method].solved and trunk is None
    found = [passes.cost(each, _trunk_pass(job, each.expert)) for each in texts if solved]
    found += [passes.cost(each, _router_pass(job, each.expert, trunk)) for each in texts]
    memory = {each.writing.work: each.writing.total() for each in texts if each.writing is not None}
    memory |= {need.work: need.total(tokens) for need, tokens in _other_steps(job, experts, trunk)}
    return Costs(str(job.out), found, memory, disk, [*_unknown(job, texts)])


def _other_steps(job: Job, experts: Sequence[DenseExpert], trunk: LocalTrunk | None) -> Iterator[tuple[Need, int]]:
    """The memory of the steps that read no text for sums, each with a number of tokens; arguments: see `_costs`."""
    recipe, settings = job.settings.recipe, job.settings
    shape, cores = Shape.of(experts[0].config, _widest(experts)), torch.get_num_threads()
    if trunk is None:
        yield merging(shape, len(experts), METHODS[recipe.method], cores), 0
    if recipe.fit:
        needs = [fitting_need(each, settings.statistics, settings.computing.device) for each in experts]
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
    def of(cls, job: Job, source: Source) -> Self:
        if not isinstance(source.corpus, Prompts):
            return cls(source.expert, job.surveyed(source).tokens)
        checked(source.expert, source.corpus, job.settings.statistics.context)
        return cls(source.expert, source.corpus.tokens, require_memory(source.expert, job.settings.computing.device))


def _trunk_pass(job: Job, own: DenseExpert) -> TrunkPass:
    exponents = input_exponents(own.checkpoint, own.family, own.config)
    return TrunkPass(own.folder, exponents, job.settings.statistics.precision, job.settings.computing.device)


def _router_pass(job: Job, own: DenseExpert, trunk: LocalTrunk | None) -> RouterPass:
    """Under the trunk, or the expert's own, which has the same shapes."""
    path = own.folder if trunk is None else trunk.path
    exponents = feature_exponents(own.checkpoint, own.family, own.config) if trunk is None else trunk.exponents
    return RouterPass(own.folder, path, exponents, job.settings.statistics.precision, job.settings.computing.device)


@dataclass
class _Passes:
    """The costs of passes. The experts are alike, so a kind's pace is measured once for a number of threads."""

    job: Job
    _paces: dict[tuple[type[Pass], int], float] = field(default_factory=dict)

    def cost(self, text: _Text, work: Pass) -> PassCost:
        settings, computing = self.job.settings.statistics, self.job.settings.computing
        kind: Literal["trunk", "router"] = "trunk" if isinstance(work, TrunkPass) else "router"
        threads, room = room_of(work, settings, computing, text.tokens)
        busy = min(threads, max(1, text.tokens // enough(int(text.expert.config.hidden_size))))
        if (measured := (type(work), busy)) not in self._paces:
            with computing.progress.track(f"measuring a layer of the {kind} pass", 1, "layers") as tracker:
                self._paces[measured] = Streamed(work, settings.batch_tokens, busy).pace(largest(settings))
                tracker.advance(1)
        need, states = room.need, min(room.states, room.need.token * text.tokens)
        return PassCost(
            text.expert.domain,
            kind,
            need.on_device,
            need.in_host + need.journal + states,
            estimate(work, room, text.tokens, 1 / self._paces[measured]),
        )


def _unknown(job: Job, texts: Sequence[_Text]) -> Iterator[str]:
    yield "Not included: the time of other steps than the passes, and scores."
    if written := [each.expert.domain for each in texts if each.writing is not None]:
        yield f"Unknown: the time to write the text of {', '.join(written)}; its tokens are the number asked for."
    if any(path.name != LOCK for path in job.work.glob("*")):
        yield f"Included: work that an interrupted run has done; it is in {job.work}."
