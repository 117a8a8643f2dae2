"""`python -m trials.curves [RECIPE ...]`: the score of trained recipes by the tokens of their training.

Each recipe is trained once, at a constant rate after the warm-up. A point of n tokens continues from that training's
first 0.8 n tokens, while the rate falls to 0 over the last 0.2 n.
"""

import argparse
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import torch
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from moerge.files import atomic_file, cache_folder
from moerge.progress import progress
from moerge_lab.demo import corpora
from moerge_lab.recipes.base import Fleet, Model, Options, number, whole
from moerge_lab.recipes.models import Routed, load
from moerge_lab.recipes.registry import parse
from moerge_lab.recipes.trained import routing_of, untrained
from moerge_lab.table.measure import Settings, measure
from moerge_lab.table.plots import picture
from moerge_lab.table.presets import PRESETS
from moerge_lab.table.table import Row, Run, Table
from moerge_lab.table.texts import read_elsewhere, read_texts
from moerge_lab.training.batches import batches
from moerge_lab.training.job import Trained
from moerge_lab.training.loop import Run as Training
from moerge_lab.training.loop import Trainer
from moerge_lab.training.losses import RoutedLoss
from moerge_lab.training.parameters import trainable
from trials.output import show, write

TRAINED = ("btx", "btx:start=recommended", "btx:start=fitted")
UNTRAINED = ("dume", "recommended", "recommended:fit=1", "recommended-oracle")
TOKENS = "training tokens"
"""The option over which curves are drawn."""
WARMUP = 0.8 / 64
"""Share of the longest training, within the shortest."""
HALVINGS = 6


def points(steps: int) -> list[int]:
    """Steps of the trainings, each half of the next."""
    return sorted({max(1, steps >> halved) for halved in range(HALVINGS + 1)})


def curve(spec: str, longest: int) -> Run:
    """The recipe, untrained and after each point's training; `by_tokens` adds the option TOKENS."""
    recipe, options, label = parse(spec)
    assert recipe.trains is not None, spec
    which = recipe.trains

    def build(fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
        model, size = load(untrained(fleet, options), fleet.device), whole(options, "batch", 1)
        sources, highest = [domain.training for domain in fleet.domains], number(options, "rate")
        row = size * sources[0].shape[1]
        steps = longest // row
        drawn = list(batches(sources, steps, size, fleet.seed))
        loss = RoutedLoss(routing_of(options), number(options, "balance"))
        with trainable(model, which) as (parameters, elements):
            trainer = Trainer(model, parameters, Training(steps, size, highest, seed=fleet.seed), loss)

        def train(first: int, rates: Sequence[float]) -> None:
            with (
                torch.inference_mode(False),
                torch.enable_grad(),
                trainable(model, which),
                loss.routed(model),
                fleet.progress.track(f"{label}, training", len(rates) * row, "tokens") as tracker,
            ):
                model.train()
                for step, rate in enumerate(rates, first):
                    tracker.advance(trainer.step(drawn[step], step, rate).tokens)

        def scored(steps: int) -> tuple[str, Model]:
            result = Routed(model)
            result.trained = Trained(elements, steps * row)
            return f"{recipe.name} after {steps * row:,} tokens", result

        done, warmup = 0, max(1, round(WARMUP * steps))
        yield scored(0)
        for point in points(steps):
            constant = round(0.8 * point)
            train(done, [highest * min(1.0, (step + 1) / warmup) for step in range(done, constant)])
            done, last = constant, point - constant
            kept = deepcopy((model.state_dict(), trainer.optimizer.state_dict()))
            train(done, [highest * (last - step) / (last + 1) for step in range(last)])
            yield scored(point)
            model.load_state_dict(kept[0])
            trainer.optimizer.load_state_dict(kept[1])

    return Run(replace(recipe, build=build), options, label)


def by_tokens(table: Table) -> Table:
    """Rows of one curve differ in the option TOKENS; an untrained recipe has a level line."""
    every = [row.trained.tokens for row in table.rows if row.trained]
    rows: list[Row] = []
    for row in table.rows:
        ends = [row.trained.tokens] if row.trained else [min(every), max(every)]
        if row.run.recipe.name == "experts":
            rows.append(row)
            continue
        for tokens in ends:
            run = replace(row.run, options={**row.run.options, TOKENS: tokens})
            rows.append(replace(row, run=run, name=row.run.label))
    return replace(table, rows=rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", metavar="RECIPE")
    parser.add_argument("--preset", default="demo", choices=sorted(PRESETS))
    parser.add_argument("--train", type=int, default=1_000_000, help="tokens of the longest training")
    parser.add_argument("--device", help="cpu or cuda; default: the preset's")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--svg", type=Path)
    chosen = parser.parse_args()
    set_verbosity_error()
    disable_progress_bar()
    preset, folder = PRESETS[chosen.preset], cache_folder()
    sources, base = preset.sources(folder, progress(), chosen.device)
    texts = {name: read_texts(name, source, preset.cut, training=True) for name, source in sources.items()}
    abroad = read_elsewhere(base, [str(corpora.write_elsewhere(folder / "texts"))], preset.cut)
    settings = Settings(base, 1, preset.statistics_tokens, chosen.device or preset.device)
    runs = [Run(*parse(spec)) for spec in ("experts", *UNTRAINED)]
    runs += [curve(spec, chosen.train) for spec in chosen.recipes or TRAINED]
    table = replace(measure(runs, texts, settings, progress(), abroad), against="recommended")
    show(table)
    write(table.to_json(), chosen.json)
    if chosen.svg:
        with atomic_file(chosen.svg) as out:
            out.write(picture(by_tokens(table), TOKENS).encode())


if __name__ == "__main__":
    main()
