"""`python -m trials.prompts`: `recommended` from prompts instead of text, against text.

The prompts are the beginnings of some statistics documents of each domain, equal for all rows. Rows of `recommended`
take as text: the domain's documents; as many tokens of them as are generated; texts that the expert writes by the
prompts, at several temperatures; and the prompts themselves.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

from transformers import AutoTokenizer
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from moerge.files import cache_folder
from moerge.merging import prompts as writing
from moerge.merging.prompts import Prompts, written
from moerge.models.expert_folder import DenseExpert
from moerge.progress import progress
from moerge_lab.recipes.base import Domain, Fleet, Model, Options, Shared
from moerge_lab.recipes.registry import parse
from moerge_lab.table.measure import Settings, measure
from moerge_lab.table.presets import PRESETS
from moerge_lab.table.table import Run
from moerge_lab.table.texts import read_texts
from trials.output import show, write

Text = Callable[[Fleet, Domain], Sequence[list[int]]]
"""The text of a domain for statistics."""
CONTEXT = 512


def on(label: str, spec: str, text: Text) -> Run:
    """A recipe with other text for statistics."""
    recipe, options, _ = parse(spec)

    def build(fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
        domains = [replace(domain, statistics=text(fleet, domain)) for domain in fleet.domains]
        yield from (
            (label, model) for _, model in recipe.build(replace(fleet, domains=domains, shared=Shared()), options)
        )

    return Run(replace(recipe, build=build), options, label)


def beginnings(domain: Domain, most: int, tokens: int) -> list[list[int]]:
    return [document[:tokens] for document in domain.statistics[:most]]


def first(domain: Domain, tokens: int) -> list[list[int]]:
    """Documents of about so many tokens."""
    result = list[list[int]]()
    for document in domain.statistics:
        if (left := tokens - sum(map(len, result))) <= 0:
            break
        result.append(document[:left])
    return result


def by_expert(fleet: Fleet, domain: Domain, most: int, tokens: int, wanted: int, temperature: float) -> list[list[int]]:
    """The tokens of texts that the expert writes by the beginnings."""
    tokenizer = AutoTokenizer.from_pretrained(domain.expert, local_files_only=True)
    texts = [str(tokenizer.decode(ids, skip_special_tokens=True)) for ids in beginnings(domain, most, tokens)]
    own, prompts = DenseExpert("expert", domain.expert), Prompts(texts, wanted)
    work = fleet.work / domain.name
    work.mkdir(exist_ok=True)
    with patch.object(writing, "TEMPERATURE", temperature):
        corpus = written(own, prompts, CONTEXT, work, fleet.device, progress())
    return [list(corpus.encode(document).ids) for _, _, document in corpus.documents()]


def rows(most: int, tokens: int, wanted: int, temperatures: Sequence[float]) -> Iterator[Run]:
    yield Run(*parse("experts"))
    yield Run(*parse("averaging"))
    yield Run(*parse("recommended"))
    yield on(f"text, {wanted:,} tokens", "recommended", lambda fleet, domain: first(domain, wanted))
    for temperature in temperatures:
        own = partial(by_expert, most=most, tokens=tokens, wanted=wanted, temperature=temperature)
        yield on(f"written at {temperature:g}, {wanted:,} tokens", "recommended", own)
    yield on(f"{most} prompts", "recommended", lambda fleet, domain: beginnings(domain, most, tokens))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="demo", choices=sorted(PRESETS))
    parser.add_argument("--tokens", type=int, default=20_000, help="scored tokens of each domain")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=16)
    parser.add_argument("--written", type=int, default=10_000, help="tokens of the texts that each expert writes")
    parser.add_argument("--longest", type=int, default=writing.LONGEST, help="tokens behind a prompt")
    parser.add_argument("--temperatures", default="1")
    parser.add_argument("--domains", help="some of the preset's, with commas; default: all")
    parser.add_argument("--rows", type=int, nargs="*", help="numbers of rows to measure; default: all")
    parser.add_argument("--against", help="row to compare others with; default: as much text")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, help="file for the figures as JSON")
    chosen = parser.parse_args()
    disable_progress_bar()
    set_verbosity_error()
    preset = PRESETS[chosen.preset]
    sources, base = preset.sources(cache_folder(), progress(), chosen.device)
    cut = replace(preset.cut, tokens=chosen.tokens)
    names = chosen.domains.split(",") if chosen.domains else list(sources)
    domains = {name: read_texts(name, sources[name], cut) for name in names}
    runs = list(
        rows(chosen.prompts, chosen.prompt_tokens, chosen.written, [*map(float, chosen.temperatures.split(","))])
    )
    if chosen.rows:
        runs = [runs[number] for number in (0, *chosen.rows)]
    writing.LONGEST = chosen.longest
    settings = Settings(base, 1, preset.statistics_tokens, chosen.device)
    table = replace(
        measure(runs, domains, settings, progress()), against=chosen.against or f"text, {chosen.written:,} tokens"
    )
    show(table)
    write(table.to_json(), chosen.json)


if __name__ == "__main__":
    main()
