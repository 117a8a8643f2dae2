"""The inputs of trials: a preset's experts and texts."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from transformers.utils import logging

from moerge.files import cache_folder
from moerge.models.tokens import Tokens
from moerge.progress import progress
from moerge.terminal import Screen
from moerge_lab.table.measure import Settings, Texts
from moerge_lab.table.presets import PRESETS, Preset
from moerge_lab.table.table import Table
from moerge_lab.table.texts import Sources, Split, read_texts

PresetName = Annotated[str, typer.Option(help="demo, standard, smollm, smollm-mlp, smollm-lora or paper.")]


class Inputs(NamedTuple):
    """A preset's experts and texts, with the folder of the seed model."""

    preset: Preset
    sources: Mapping[str, Sources]
    base: Path
    device: str

    @property
    def settings(self) -> Settings:
        return Settings(self.base, 1, self.preset.statistics_tokens, self.device)

    def texts(self, tokens: int | None = None, split: Split = "heldout") -> dict[str, Texts]:
        """The texts of each domain, with so many scored tokens; None: the preset's."""
        cut = replace(self.preset.cut, tokens=tokens or self.preset.cut.tokens)
        return {domain: read_texts(domain, source, cut, split) for domain, source in self.sources.items()}


def inputs_of(name: str, device: str | None = None) -> Inputs:
    """The inputs by a preset; missing experts are trained, on this device or the preset's."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    preset = PRESETS[name]
    device = device or preset.device
    return Inputs(preset, *preset.sources(cache_folder(), progress(), device), device)


def first(rows: Sequence[Sequence[int]], tokens: int) -> list[Tokens]:
    """The first rows, up to about this number of tokens."""
    result, total = list[Tokens](), 0
    for row in rows:
        if total >= tokens:
            break
        result.append(Tokens(row))
        total += len(row)
    return result


def show(table: Table) -> None:
    console = Screen()
    for item in table.render(console):
        console.print(item, highlight=False, markup=False)


def print_head(*columns: str) -> None:
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
