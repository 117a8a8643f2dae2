"""`constants` and `prompts`: `recommended` with another constant or option, or with other text for statistics."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from sys import maxsize
from typing import Annotated
from unittest.mock import patch

import typer

from moerge.files import cache_folder
from moerge.merging import prompts as writing
from moerge.models.expert_folder import DenseExpert
from moerge.progress import progress
from moerge_lab.experts import corpora
from moerge_lab.recipes.base import Domain, Fleet, Model, Options, Shared
from moerge_lab.recipes.registry import parse
from moerge_lab.table.measure import measure
from moerge_lab.table.table import Run
from moerge_lab.table.texts import read_elsewhere
from moerge_lab.trials.inputs import PresetName, first, inputs_of, show

DEFAULT, SEED = "recommended", "recommended:body=seed,fit=1"
_BODY, _FIT = "moerge.bodies.least_squares", "moerge.fits.fitting"
OPTIONS = (
    "routers=ridge",
    "lambda=0.0001",
    "lambda=0.01",
    "k=2",
    "rare_below=0",
    "fit=1",
    "head=average",
    "body=seed",
    "body=seed,fit=1",
    "before=1",
)
CONSTANTS = {
    **{f"shrinkage {value:g}": (DEFAULT, _BODY, "SHRINKAGE_TO_AVERAGE", value) for value in (0.001, 0.01, 1.0, 10.0)},
    **{f"evenness {value:g}": (DEFAULT, _BODY, "EVENNESS", value) for value in (0.0, 0.1, 2.0)},
    **{f"fit's shrinkage {value:g}": (SEED, _FIT, "SHRINKAGE_TO_EXPERT", value) for value in (0.025, 2.5, 25.0)},
    **{f"public text {value:g}": (SEED, _FIT, "PUBLIC_WEIGHT", value) for value in (0.0, 0.05, 0.1, 0.5, 1.0)},
}
"""A row -> a recipe, and a constant of the least squares of bodies or of fits with its value."""
CONTEXT, PROMPT_TOKENS = 512, 16
MostTokens = Annotated[int, typer.Option(min=1, help="Scored tokens of each domain.")]


def _run(name: str) -> Run:
    """A recipe, or one with a changed constant."""
    if name not in CONSTANTS:
        return Run(*parse(name))
    default, module, constant, value = CONSTANTS[name]
    recipe, options, _ = parse(default)

    def build(fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
        with patch(f"{module}.{constant}", value):
            yield from recipe.build(replace(fleet, shared=Shared()), options)

    return Run(replace(recipe, build=build), options, name)


def _from(label: str, text: Callable[[Fleet, Domain], list[list[int]]]) -> Run:
    """The default with other text for statistics."""
    recipe, options, _ = parse(DEFAULT)

    def build(fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
        domains = [replace(domain, statistics=text(fleet, domain)) for domain in fleet.domains]
        return recipe.build(replace(fleet, domains=domains, shared=Shared()), options)

    return Run(replace(recipe, build=build), options, label)


def constants(
    names: Annotated[list[str] | None, typer.Argument(help="Constants, such as 'evenness 2', or recipes.")] = None,
    preset: PresetName = "small",
    tokens: MostTokens = maxsize,
) -> None:
    """Change one constant or option of the recommended recipe at a time; by default every one.

    The tuning split is scored, so no choice depends on the held-out text of tables.
    """
    inputs, names = inputs_of(preset), names or [*(f"{DEFAULT}:{option}" for option in OPTIONS), *CONSTANTS]
    elsewhere = [str(corpora.write_elsewhere(cache_folder() / "texts"))]
    windows = read_elsewhere(inputs.base, elsewhere, replace(inputs.preset.cut, tokens=tokens), "tuning")
    runs = [_run(name) for name in ("experts", DEFAULT, *names)]
    table = measure(runs, inputs.texts(tokens, "tuning"), inputs.settings, progress(), windows)
    show(replace(table, against=DEFAULT))


def prompts(
    preset: PresetName = "small",
    tokens: MostTokens = 20_000,
    beginnings: Annotated[int, typer.Option(min=1, help="Beginnings of documents of each domain.")] = 8,
    written: Annotated[int, typer.Option(help="Tokens of text that each expert writes.")] = 10_000,
    longest: Annotated[int, typer.Option(help="Tokens behind a prompt.")] = writing.LONGEST,
) -> None:
    """Compare statistics of real text, of text that the experts write by prompts, and of the prompts themselves."""
    inputs, real = inputs_of(preset), f"real text, {written:,} tokens"

    def begun(domain: Domain) -> list[list[int]]:
        return [document[:PROMPT_TOKENS] for document in domain.statistics[:beginnings]]

    def by_expert(fleet: Fleet, domain: Domain) -> list[list[int]]:
        expert = DenseExpert(domain.name, domain.expert)
        texts = [str(expert.tokenizer.decode(ids, skip_special_tokens=True)) for ids in begun(domain)]
        with patch.object(writing, "LONGEST", longest):
            given = writing.Prompts(texts, written)
            corpus = writing.written(expert, given, CONTEXT, fleet.work, fleet.device, progress())
        return [list(corpus.encode(document).ids) for _, _, document in corpus.documents()]

    runs = [
        _run("experts"),
        _from(real, lambda fleet, domain: [list(row.ids) for row in first(domain.statistics, written)]),
        _from(f"text that the expert wrote, {written:,} tokens", by_expert),
        _from(f"the {beginnings} prompts", lambda fleet, domain: begun(domain)),
    ]
    show(replace(measure(runs, inputs.texts(tokens), inputs.settings, progress()), against=real))
