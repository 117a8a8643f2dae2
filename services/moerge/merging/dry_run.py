"""A merge's checks, and its costs in memory, disk and time, without its work: nothing is written."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import torch
from rich.console import RenderableType
from rich.filesize import decimal
from rich.table import Table

from moerge.bodies.head_kinds import HEADS
from moerge.bodies.methods.registry import METHODS
from moerge.documents.shards import enough
from moerge.files import LOCK, work_folder
from moerge.fits.sample import need_of as fitting_need
from moerge.fits.sample import tokens_that_fit
from moerge.memory.machine import free_for
from moerge.memory.needs import Need, merging, merging_head, solving
from moerge.memory.shapes import Shape
from moerge.merging.checks import check
from moerge.merging.kept_statistics import KeptVersion
from moerge.merging.merge import settings_of
from moerge.merging.prompts import Prompts, checked, require_memory
from moerge.merging.settings import MergeSettings, Source
from moerge.merging.texts import read_text
from moerge.models.bounds import feature_exponents, head_exponents, input_exponents
from moerge.models.expert_folder import DenseExpert
from moerge.statistics.contribution import room_of
from moerge.statistics.estimate import Estimate, duration, estimate, largest
from moerge.statistics.passes import BodyPass, HeadPass, Pass, RouterPass
from moerge.statistics.streamed import Streamed
from moerge_proto.statistics_file import Kind


@dataclass(frozen=True)
class PassCost:
    """A pass over one domain's text. `host`: bytes of host memory, which include `device` if the model is there."""

    domain: str
    kind: Kind
    device: int
    host: int
    estimate: Estimate


@dataclass(frozen=True)
class Costs:
    """The costs of a merge: its passes, the memory of other steps, the missing disk, and notes."""

    folder: str
    passes: Sequence[PassCost]
    memory: Mapping[str, int]
    disk: int
    notes: Sequence[str]

    def to_json(self) -> dict[str, object]:
        """The costs as data for JSON; sizes in bytes."""
        return {
            "folder": self.folder,
            "passes": [{"domain": item.domain, "pass": item.kind, **_figures([item])} for item in self.passes],
            "total": _figures(self.passes),
            "memory": dict(self.memory),
            "disk": self.disk,
            "notes": list(self.notes),
        }

    def render(self) -> Iterator[RenderableType]:
        table = Table("domain", "pass", "tokens", "device", "host", "windows", "read", "time", title="Passes")
        for column in table.columns[2:]:
            column.justify = "right"
        for item in self.passes:
            table.add_row(item.domain, item.kind, *_cells([item]))
        table.add_section()
        table.add_row("total", "", *_cells(self.passes))
        yield table
        yield "Columns: memory where the model is; host memory, with the model on a CPU; weights read; time to compute."
        yield f"Memory of other steps: {', '.join(f'{step} {decimal(size)}' for step, size in self.memory.items())}."
        yield f"Disk: output and work need up to {decimal(self.disk)} more."
        yield from self.notes
        yield "Nothing was written."


def _figures(passes: Sequence[PassCost]) -> dict[str, float]:
    """Passes run one after the other: the most memory, and the sums of the other figures."""
    return {
        "tokens": sum(item.estimate.tokens for item in passes),
        "device_memory": max(item.device for item in passes),
        "host_memory": max(item.host for item in passes),
        "windows": sum(item.estimate.windows for item in passes),
        "read": sum(item.estimate.read for item in passes),
        "seconds": sum(item.estimate.seconds for item in passes),
    }


def _cells(passes: Sequence[PassCost]) -> list[str]:
    result = _figures(passes)
    sizes = [decimal(int(result[name])) for name in ("device_memory", "host_memory", "read")]
    return [f"{result['tokens']:,}", *sizes[:2], f"{result['windows']:,}", sizes[2], duration(result["seconds"])]


def merge(
    sources: Sequence[Source],
    out: Path,
    settings: MergeSettings | None = None,
    say: Callable[[str], None] = lambda text: None,
    version: KeptVersion | None = None,
) -> Costs:
    """Checks a merge or an addition, and tells its costs; arguments and errors are those of `moerge.merging.merge`."""
    settings = settings_of(sources, out, settings or MergeSettings(), version)
    disk, recipe = check(sources, out, settings, version, say), settings.recipe
    body = None if version is None else version.body
    texts, passes = [_Text.of(settings, source, say) for source in sources], _Passes(settings)
    experts, solved = [item.expert for item in texts], METHODS[recipe.body].solved and body is None
    precision, device = settings.statistics.precision, settings.computing.device
    before, costs = settings.router_statistics.before, list[PassCost]()
    for text in texts if solved else ():
        costs.append(passes.cost(BodyPass(text.expert, input_exponents(text.expert), precision, device), text))
    for text in texts if HEADS[recipe.head].solved else ():
        if text.expert.domain in settings.seed_heads:
            continue
        costs.append(passes.cost(HeadPass(text.expert, head_exponents(text.expert), precision, device), text))
    for text in texts:  # under the body, or the expert's own, which has the same shapes
        exponents = feature_exponents(text.expert) if body is None else body.exponents
        work = RouterPass(text.expert, body or text.expert, exponents, precision, device, before)
        costs.append(passes.cost(work, text))
    memory = {item.writing.work: item.writing.total() for item in texts if item.writing is not None}
    memory |= {need.work: need.total(tokens) for need, tokens in _other_steps(settings, experts, version)}
    return Costs(str(out), costs, memory, disk, [*_notes(out, texts)])


def _other_steps(
    settings: MergeSettings, experts: Sequence[DenseExpert], version: KeptVersion | None
) -> Iterator[tuple[Need, int]]:
    """The memory of the steps that read no text for sums, each with a number of tokens."""
    recipe = settings.recipe
    dtypes = {spec.dtype for expert in experts for spec in expert.checkpoint.specs.values()}
    widest = max(dtypes, key=lambda dtype: dtype.itemsize)
    shape, cores = Shape.of(experts[0].config, widest), torch.get_num_threads()
    members = len(experts) + (0 if version is None else len(version.record.experts))
    if version is None:
        yield merging(shape, len(experts), METHODS[recipe.body], cores), 0
    if recipe.fit:
        fitted = [expert for expert in experts if expert.domain not in settings.unfitted]
        needs = [fitting_need(expert, settings.statistics, settings.computing.device) for expert in fitted]
        need, free = max(needs, key=Need.total), free_for(settings.computing.device)
        yield need, tokens_that_fit(need, shape.hidden, free)
    yield merging_head(shape, members, solved=HEADS[recipe.head].solved), 0
    yield solving(shape, cores), 0


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


@dataclass
class _Passes:
    """The costs of passes. The experts are alike, so a kind's pace is measured once for a number of threads."""

    settings: MergeSettings
    _paces: dict[tuple[type[Pass], int], float] = field(default_factory=dict)

    def cost(self, work: Pass, text: _Text) -> PassCost:
        settings, computing = self.settings.statistics, self.settings.computing
        threads, room = room_of(work, settings, computing, text.tokens)
        busy = min(threads, max(1, text.tokens // enough(int(text.expert.config.hidden_size))))
        if (measured := (type(work), busy)) not in self._paces:
            with computing.progress.track(f"measuring a layer of the {work.kind} pass", 1, "layers") as tracker:
                self._paces[measured] = Streamed(work, settings.batch_tokens, busy).pace(largest(work, settings))
                tracker.advance(1)
        need, states = room.need, min(room.states, room.need.token * text.tokens)
        return PassCost(
            text.expert.domain,
            work.kind,
            need.on_device,
            need.in_host + need.journal + states,
            estimate(work, room, text.tokens, 1 / self._paces[measured]),
        )


def _notes(out: Path, texts: Sequence[_Text]) -> Iterator[str]:
    yield "Not included: the time of other steps than the passes, and scores."
    if written := [text.expert.domain for text in texts if text.writing is not None]:
        yield f"Unknown: the time to write the text of {', '.join(written)}; its tokens are the number asked for."
    if (host := texts[0].expert.family.host).fused:
        yield f"{host.class_name} has all experts of a layer in one tensor: each addition writes all MLPs anew."
    work = work_folder(out)
    if any(path.name != LOCK for path in work.glob("*")):
        yield f"Included: work that an interrupted run has done; it is in {work}."
