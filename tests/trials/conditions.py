"""`python -m trials.conditions [unigrams] [light]`: recipes on other kinds of experts than the presets'.

`unigrams`: two domains, and both again with the words of every line in reverse order. So pairs of domains have equal
word counts, and differ only in order. `light`: the demo's domains, with experts nearer to the seed, by a learning rate
of 1.5e-4 instead of 1e-3. Missing experts are trained like the demo's, and scored on held-out text.
"""

import argparse
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from moerge.files import atomic_file, cache_folder
from moerge.progress import progress
from moerge.scoring.draw import Cut
from moerge_lab.demo import corpora
from moerge_lab.demo.train import DEMO, Training, train
from moerge_lab.recipes.registry import parse
from moerge_lab.table.measure import Settings, measure
from moerge_lab.table.presets import PRESETS
from moerge_lab.table.table import Run
from moerge_lab.table.texts import Sources, read_texts
from trials.output import show, write

RECIPES = (
    "experts",
    "averaging",
    "oracle",
    "dume",
    "regmean",
    "recommended",
    "recommended:fit=1",
    "recommended-oracle",
    "btm",
)
Corpora = Mapping[str, Mapping[str, Path]]
"""Domain -> split -> file."""


def reversed_lines(text: str) -> str:
    """The text with the words of each line in reverse order, after the same indentation."""
    return "\n".join(_indentation(line) + " ".join(reversed(line.split())) for line in text.split("\n"))


def _indentation(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def with_reversed(texts: Corpora, folder: Path) -> dict[str, Mapping[str, Path]]:
    """Each domain, followed by the same domain with reversed lines, in files in `folder`."""
    result: dict[str, Mapping[str, Path]] = {}
    for domain, files in texts.items():
        name = f"{domain}-reversed"
        paths = {split: folder / name / file.name for split, file in files.items()}
        for split, file in files.items():
            with file.open(encoding="utf-8") as lines, atomic_file(paths[split]) as out:
                for line in lines:
                    changed = {"text": reversed_lines(json.loads(line)["text"])}
                    out.write(json.dumps(changed, ensure_ascii=False).encode() + b"\n")
        result |= {domain: files, name: paths}
    return result


def unigrams(folder: Path) -> tuple[Corpora, Training]:
    return with_reversed(corpora.write(folder / "texts", ("code", "geography")), folder / "texts"), DEMO


def light(folder: Path) -> tuple[Corpora, Training]:
    gentle = replace(DEMO.for_expert, learning_rate=1.5e-4)
    return corpora.write(folder / "texts"), replace(DEMO, for_expert=gentle)


CONDITIONS = {"unigrams": unigrams, "light": light}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("conditions", nargs="*", default=[*CONDITIONS], metavar="CONDITION")
    parser.add_argument("--tokens", type=int, default=20_000, help="scored tokens of each domain")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, help="file for the figures as JSON")
    chosen = parser.parse_args()
    disable_progress_bar()
    set_verbosity_error()
    folder, preset, written = cache_folder(), PRESETS["demo"], dict[str, object]()
    runs = [Run(*parse(spec)) for spec in RECIPES]
    for name in chosen.conditions:
        texts, training = CONDITIONS[name](folder)
        trained = train(texts, folder / "experts", progress(), training, chosen.device)
        cut = Cut(preset.cut.context, preset.cut.stride, chosen.tokens)
        domains = {}
        for domain, files in texts.items():
            statistics, held_out, tuning = ([str(files[split])] for split in ("statistics", "heldout", "tuning"))
            sources = Sources(trained.experts[domain], statistics, held_out, tuning=tuning)
            domains[domain] = read_texts(domain, sources, cut)
        settings = Settings(trained.seed, 1, preset.statistics_tokens, chosen.device)
        table = replace(measure(runs, domains, settings, progress()), against="dume")
        show(table)
        written[name] = table.to_json()
    write(written, chosen.json)


if __name__ == "__main__":
    main()
