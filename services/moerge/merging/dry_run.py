"""A merge's checks and costs, without its work: nothing is written."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

import torch

from moerge.documents.shards import enough
from moerge.files import LOCK
from moerge.merging import adding
from moerge.merging import merge as merging
from moerge.merging.costs import Costs, PassCost
from moerge.merging.job import Job, MergeSettings, Source
from moerge.merging.kept import Kept
from moerge.merging.local import LocalTrunk
from moerge.merging.prompts import Prompts, checked, writing_memory
from moerge.models.bounds import attention_size, feature_exponents, input_exponents
from moerge.models.dense import trunk_names
from moerge.models.expert_folder import DenseExpert
from moerge.routers.solve import solving_memory
from moerge.statistics.contribution import room_of
from moerge.statistics.estimate import estimate, largest
from moerge.statistics.passes import Pass, RouterPass, TrunkPass
from moerge.statistics.streamed import Streamed
from moerge.threads import at_once
from moerge.trunk.methods.registry import METHODS


def merge(
    sources: Sequence[Source],
    out: Path,
    settings: MergeSettings | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Costs:
    """Checks a merge, and tells its costs; arguments and errors are those of `moerge.merging.merge.merge`."""
    job = Job(out, settings or MergeSettings(), say)
    return _costs(job, sources, merging.check(job, sources))


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
    memory = {f"writing texts of {each.expert.domain}": each.writing for each in texts if each.writing is not None}
    if trunk is None:
        memory["merging the trunk"] = merging_memory(experts, solved=solved)
    if recipe.fit:
        memory["fitting MLPs"] = max(map(job.fitting_memory, experts))
    config = experts[0].config
    memory["solving the routers"] = solving_memory(
        int(config.hidden_size), int(config.num_hidden_layers), torch.get_num_threads()
    )
    return Costs(str(job.out), found, memory, disk, [*_unknown(job, texts)])


def merging_memory(experts: Sequence[DenseExpert], *, solved: bool) -> int:
    """About the bytes to merge a trunk: its largest tensor of each expert, and two merged ones.

    A solved one also needs the larger of two: float64 grams, seven of each projection of the attention at work; or four
    float64 matrices of the head's size, and grams, three of each expert, if aligned to fitted MLPs, and of each kind of
    rows at work.
    """
    own, layers = experts[0], int(experts[0].config.num_hidden_layers)
    specs = [own.checkpoint.specs[name] for name in trunk_names(own.checkpoint, own.family, layers)]
    copies = (len(experts) + 2) * max(spec.bytes for spec in specs)
    if not solved:
        return copies
    head = max(torch.Size(spec.shape).numel() for spec in specs)
    size = max(int(own.config.hidden_size), attention_size(own.config))
    return copies + 8 * max(7 * at_once() * size**2, 4 * head + 3 * (len(experts) + at_once()) * size**2)


@dataclass(frozen=True)
class _Text:
    """A domain's expert, the tokens of its statistics, and the bytes to write their text; None: it exists."""

    expert: DenseExpert
    tokens: int
    writing: int | None = None

    @classmethod
    def of(cls, job: Job, source: Source) -> Self:
        if not isinstance(source.corpus, Prompts):
            return cls(source.expert, job.surveyed(source).tokens)
        checked(source.expert, source.corpus, job.settings.statistics.context)
        return cls(source.expert, source.corpus.tokens, writing_memory(source.expert, job.settings.computing.device))


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
            need.device(threads),
            need.host(threads, on_gpu=work.device == "cuda") + need.journal + states,
            estimate(work, room, text.tokens, 1 / self._paces[measured]),
        )


def _unknown(job: Job, texts: Sequence[_Text]) -> Iterator[str]:
    yield "Not included: the time of other steps than the passes, and scores."
    if written := [each.expert.domain for each in texts if each.writing is not None]:
        yield f"Unknown: the time to write the text of {', '.join(written)}; its tokens are the number asked for."
    if any(path.name != LOCK for path in job.work.glob("*")):
        yield f"Included: work that an interrupted run has done; it is in {job.work}."
