"""`python -m trials.stitching`: an expert is masked out of a stitched model (BTS), or joins one.

Rows are BTS of all experts; without the last one, at once and after a short training on the others' text; BTS of the
others alone; and with the last one joined to those, at once and after a short training on all text.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from moerge.files import cache_folder
from moerge.progress import progress
from moerge_lab.mixtures.bts import Bts
from moerge_lab.recipes.base import Fleet, Model, Options, number
from moerge_lab.recipes.mixtures import members
from moerge_lab.recipes.models import Loaded
from moerge_lab.recipes.registry import parse
from moerge_lab.recipes.trained import train
from moerge_lab.table.measure import Settings, measure
from moerge_lab.table.presets import PRESETS
from moerge_lab.table.table import Run
from moerge_lab.table.texts import read_texts
from trials.output import show, write

SHORT = 0.2
"""Share of the whole training's tokens in a short one."""


def stitched(fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
    *others, last = fleet.domains
    without = replace(fleet, domains=others)
    short = {**options, "train": SHORT * number(options, "train")}

    def row(name: str, model: Bts, on: Fleet, settings: Options | None) -> tuple[str, Model]:
        told = None if settings is None else train(model, "added", on, settings)
        result = Loaded(model)
        result.trained = told
        return name, result

    whole = Bts.of(members(fleet, {}))
    yield row("bts", whole, fleet, options)
    masked = whole.masking([last.name])
    yield row(f"bts, {last.name} masked", masked, without, None)
    yield row(f"bts, {last.name} masked, trained shortly", masked, without, short)
    fewer = Bts.of(members(without, {}))
    yield row(f"bts without {last.name}", fewer, without, options)
    joined = fewer.joined(last.name, last.expert)
    yield row(f"bts, {last.name} joined", joined, fleet, None)
    yield row(f"bts, {last.name} joined, trained shortly", joined, fleet, short)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="demo", choices=sorted(PRESETS))
    parser.add_argument("--train", type=int, default=250_000, help="tokens of the whole training")
    parser.add_argument("--device", help="cpu or cuda; default: the preset's")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    set_verbosity_error()
    disable_progress_bar()
    preset = PRESETS[chosen.preset]
    sources, base = preset.sources(cache_folder(), progress(), chosen.device)
    texts = {name: read_texts(name, source, preset.cut, training=True) for name, source in sources.items()}
    settings = Settings(base, 1, preset.statistics_tokens, chosen.device or preset.device)
    recipe, options, label = parse(f"bts:train={chosen.train}")
    runs = [Run(*parse("experts")), Run(replace(recipe, build=stitched), options, label)]
    table = replace(measure(runs, texts, settings, progress()), against=None)
    show(table)
    write(table.to_json(), chosen.json)


if __name__ == "__main__":
    main()
