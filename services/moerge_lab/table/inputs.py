"""The experts, texts and settings of a table."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from moerge.errors import MoergeError
from moerge.files import cache_folder
from moerge.models.sources import checkpoint_folder
from moerge.progress import progress
from moerge.scoring.draw import Cut
from moerge.scoring.perplexity import Window
from moerge.settings import named_values, single_values
from moerge_lab.experts import corpora
from moerge_lab.table.measure import Settings, Texts, measure
from moerge_lab.table.options import Given
from moerge_lab.table.presets import PRESETS, Preset
from moerge_lab.table.runs import reference
from moerge_lab.table.table import Run, Table
from moerge_lab.table.texts import Sources, Split, read_elsewhere, read_texts, require_one_tokenizer, switched
from moerge_proto.records import TunedModel, read_record
from moerge_proto.versions import Lineage

STATISTICS_TOKENS = 20_000
"""Default number of statistics tokens per domain."""


@dataclass(frozen=True)
class Inputs:
    """Each domain's expert and files, the windows of the scored text, the measurement's settings, and the preset."""

    sources: Mapping[str, Sources]
    cut: Cut
    settings: Settings
    preset: str | None = None

    def texts(self, split: Split = "heldout", *, switch: bool = False, training: bool = False) -> dict[str, Texts]:
        """Each domain's texts; with `switch`, scored behind text of other domains."""
        require_one_tokenizer(self.sources)
        cut = replace(self.cut, tokens=sys.maxsize) if switch else self.cut
        read = {name: read_texts(name, source, cut, split, training=training) for name, source in self.sources.items()}
        return switched(read, self.cut) if switch else read

    def table(
        self, runs: Sequence[Run], against: str | None = None, split: Split = "heldout", *, switch: bool = False
    ) -> Table:
        """The measured recipes; with a preset, also on text of no domain."""
        compared = reference(against, runs, tuple(self.sources))
        texts = self.texts(split, switch=switch, training=any(run.recipe.trains for run in runs))
        elsewhere: list[Window] = []
        if self.preset is not None and not switch:
            files = [str(corpora.write_elsewhere(cache_folder() / "texts"))]
            elsewhere = read_elsewhere(next(iter(texts.values())).expert, files, self.cut, split)
        return replace(measure(runs, texts, self.settings, progress(), elsewhere), against=compared)

    def in_slot_order(self, slots: Sequence[str]) -> "Inputs":
        """With the domains in the order of a version's slots."""
        if set(slots) != self.sources.keys():
            raise MoergeError(f"expected {', '.join(slots)}, found {', '.join(self.sources)}", where="`expert`")
        return replace(self, sources={domain: self.sources[domain] for domain in slots})

    def to_json(self) -> dict[str, object]:
        base = None if self.settings.base is None else str(self.settings.base)
        return {"preset": self.preset, **asdict(self.cut), **asdict(self.settings), "base": base}


def slots_of(version: Path) -> Sequence[str]:
    """The domain of each of a version's experts."""
    record = read_record(version)
    if not isinstance(record, Lineage | TunedModel):
        todo = "name the folder of a version; `moerge table --recipe bam` trains and scores mixtures"
        raise MoergeError("has no version's moerge.json", where=str(version), todo=todo)
    return record.domains


def read(given: Given) -> Inputs:
    """The inputs that options name; an error if one is missing, or they contradict each other."""
    preset = _preset(given)
    if preset is None:
        sources, base = _sources(given), None if given.base is None else checkpoint_folder(given.base)
        cut, statistics_tokens, device = Cut(), STATISTICS_TOKENS, "cpu"
    else:
        sources, base = preset.sources(cache_folder(), progress(), given.device)
        cut, statistics_tokens, device = preset.cut, preset.statistics_tokens, preset.device
    context = given.context or cut.context
    statistics_tokens = statistics_tokens if given.statistics_tokens is None else given.statistics_tokens
    return Inputs(
        sources,
        Cut(context, context // 2, given.tokens or cut.tokens),
        Settings(base, given.seeds, statistics_tokens, given.device or device),
        given.preset,
    )


def _preset(given: Given) -> Preset | None:
    if given.preset is None:
        return None
    for name in ("expert", "text", "held_out", "other", "base"):
        if getattr(given, name):
            what = "a preset has its own experts, texts and base"
            raise MoergeError(what, where=f"`{name}`", todo="omit it, or `preset`")
    return PRESETS[given.preset]


def _sources(given: Given) -> dict[str, Sources]:
    experts = single_values("expert", given.expert or ())
    if not given.text and not given.held_out:
        raise MoergeError("no text is given", where="`text`", todo="name each domain's text: NAME=FILES")
    files = {kind: named_values(kind, getattr(given, kind) or ()) for kind in ("text", "held_out", "other")}
    for kind, named in files.items():
        if named and named.keys() != experts.keys():
            names = f"{', '.join(named)}, but {', '.join(experts) or 'none'} by `expert`"
            raise MoergeError(f"names differ: {names}", where=f"`{kind}`", todo="name the same domains")
    return {
        name: Sources(checkpoint_folder(folder), *(named.get(name, ()) for named in files.values()))
        for name, folder in experts.items()
    }
