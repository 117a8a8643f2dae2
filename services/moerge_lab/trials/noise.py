"""`noise`: versions from router contributions with noise, by the budget and the number of documents."""

import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from os import cpu_count
from pathlib import Path
from secrets import token_bytes
from tempfile import TemporaryDirectory
from typing import Annotated
from unittest.mock import patch

import typer
from torch import Tensor

from moerge.documents.corpus import Corpus
from moerge.merging.assemble import Assembled, KeptParts, body_of, fitted, head_contributions
from moerge.merging.local_lineages import LocalBody, local_version
from moerge.merging.settings import VersionSettings
from moerge.models.expert_folder import DenseExpert
from moerge.models.tokens import Tokens
from moerge.noise.finisher import NoiseFinisher
from moerge.noise.noisy_sums import release
from moerge.noise.whitening import BoundedSum, Limits, Whitenings
from moerge.progress import NoProgress, progress
from moerge.statistics.contribution import Computing, router_contribution
from moerge.statistics.passes import RouterPass
from moerge.statistics.streamed import Streamed
from moerge_lab.recipes.base import Fleet, Model, Options, Recipe
from moerge_lab.recipes.models import Routed
from moerge_lab.recipes.published import Documents, experts_of
from moerge_lab.recipes.registry import parse
from moerge_lab.table.measure import fleet_of, measure
from moerge_lab.table.options import Device
from moerge_lab.table.table import Run
from moerge_lab.table.texts import Sources
from moerge_lab.trials.inputs import PresetName, inputs_of, print_head
from moerge_proto.recipes import RECOMMENDED, VersionRecipe
from moerge_proto.statistics_file import Int64, Privacy, StatisticsFile, StatisticsSettings, write

PASSAGE = 48
"""Tokens of every document: the presets' texts are cut, because noise asks for many documents."""
EPSILONS = 0.5, 1.0, 2.0, 5.0, 10.0
_PARTS = "training", "text"
_COVERED = RECOMMENDED.model_copy(update={"body": "seed", "head": "seed"})
VERSIONS = {"fitted, solved head": _COVERED.model_copy(update={"fit": True, "head": "regmean"}), "covered": _COVERED}
"""The recommended version under a seed's body; and the one of which noise covers all but the experts' weights."""
KEPT = {"kept body": _COVERED}
"""Of experts that keep the seed's body and head."""


def passages(domain: str, sources: Sources, most: int) -> list[Tokens]:
    """Documents of a domain in random order, pieces of its texts for training and statistics."""
    corpus = Corpus([file for part in _PARTS for file in getattr(sources, part)], DenseExpert(domain, sources.expert))
    rows = [corpus.encode(document).ids for _, _, document in corpus.documents()]
    every = [row[end - PASSAGE : end] for row in rows for end in range(PASSAGE, len(row) + 1, PASSAGE)]
    return [Tokens(row) for row in random.Random(0).sample(every, min(most, len(every)))]  # noqa: S311  # no secret


class _Streamed(Streamed):
    """Passes several passages at a time: without a release, a feature may depend on another document's by rounding."""

    def __init__(self, work: RouterPass, batch_tokens: int, threads: int, room: int | None) -> None:
        super().__init__(work, batch_tokens, threads, room)
        self._batch_tokens = batch_tokens


class _Sum(BoundedSum):
    def add(self, x: Tensor) -> None:
        super().add(x.unflatten(0, (-1, PASSAGE)))


@dataclass(frozen=True)
class Exact:
    """An expert's exact sums by the largest budget, on the grid of its noise, and the whitenings."""

    expert: DenseExpert
    body: LocalBody
    journal: Path
    whitenings: Whitenings

    @classmethod
    def of(
        cls,
        expert: DenseExpert,
        body: LocalBody,
        documents: Sequence[Tokens],
        folder: Path,
        computing: Computing,
    ) -> "Exact":
        finisher = NoiseFinisher(Privacy(epsilon=max(EPSILONS)))
        journal, kept_at = (folder / f"{expert.domain}.{name}" for name in ("exact", "whitenings"))
        kept = list[Whitenings]()

        def keep(exact: Path, path: Path, body: object, whitenings: Whitenings) -> None:
            shutil.copy(exact, journal)
            shutil.copy(whitenings.path, kept_at)
            kept.append(replace(whitenings, path=kept_at))

        with (
            patch("moerge.noise.finisher.release", keep),
            patch("moerge.statistics.windows.Streamed", _Streamed),
            patch("moerge.noise.whitening.BoundedSum", _Sum),
        ):
            path = folder / f"{expert.domain}.noisy"
            router_contribution(expert, body, documents, path, _statistics(), computing, finisher)
        return cls(expert, body, journal, kept[0])

    def with_noise(self, privacy: Privacy, path: Path) -> Path:
        """The contribution by a smaller budget: the sums on its grid, without a further pass, and noise."""
        whitenings = replace(self.whitenings, privacy=privacy)
        before, after = self.whitenings.limits, whitenings.limits
        coarse = path.with_suffix(".coarse")
        with StatisticsFile(self.journal) as file, coarse.open("wb") as out:
            settings = file.manifest.settings.model_copy(update={"privacy": privacy})
            manifest = file.manifest.model_copy(update={"settings": settings})
            write(out, manifest, _scaled(file, before, after))
        release(coarse, path, self.body, whitenings)
        coarse.unlink()
        return path


def _scaled(file: StatisticsFile, before: Limits, after: Limits) -> Iterator[Int64]:
    for layer in range(file.manifest.layers):
        yield (file.gram(layer) * (after.gram / before.gram)).astype("int64")
        yield (file.cross(layer) * (after.cross / before.cross)).astype("int64")


def _statistics() -> StatisticsSettings:
    return StatisticsSettings(tokens_per_document=PASSAGE)


class Fixed:
    """A version's members, body and head, which are the same for all budgets."""

    def __init__(self, recipe: VersionRecipe, fleet: Fleet, work: Path) -> None:
        base = DenseExpert("seed", fleet.seed_model)
        settings = VersionSettings(recipe=recipe, base=base, computing=Computing(fleet.device, progress=progress()))
        experts, texts = experts_of(fleet), [Documents.of(domain.statistics, {}) for domain in fleet.domains]
        self.recipe, self.body, self.members = recipe, body_of(experts, texts, settings, work), experts
        if recipe.fit:
            pairs = zip(experts, texts, strict=True)
            self.members = [fitted(expert, text, self.body, settings, work) for expert, text in pairs]
        self.heads = head_contributions(experts, texts, settings, work, self.members)

    def version(self, contributions: Sequence[Path], folder: Path) -> Path:
        lineage, inputs = local_version(
            self.members,
            self.body,
            contributions,
            self.recipe.solve,
            head=self.recipe.head,
            head_contributions=self.heads,
        )
        return Assembled(lineage, inputs, KeptParts(self.body)).write(folder)


def _row(label: str, fixed: Fixed, contributions: Sequence[Path]) -> Run:
    def build(fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
        yield label, Routed.of(fixed.version(contributions, fleet.work / "version"), fleet.device)

    return Run(Recipe("noise", "design.md", build), {}, label)


def noise(
    preset: PresetName = "small",
    tokens: Annotated[int, typer.Option(min=1, help="Scored tokens of each domain.")] = 5_000,
    documents: Annotated[list[int] | None, typer.Option(help="Documents of each owner; repeat.")] = None,
    device: Device = None,
) -> None:
    """Score versions whose router contributions have noise, by budget and documents."""
    inputs = inputs_of(preset, device)
    texts = inputs.texts(tokens)
    experts = Run(*parse("experts"))
    columns = ["no noise", *(f"epsilon {epsilon:g}" for epsilon in EPSILONS)]
    print_head("version", "documents", *columns)
    with TemporaryDirectory(prefix="moerge-noise-") as home:
        for path, recipe in (KEPT if inputs.preset.training.mlps else VERSIONS).items():
            work = Path(home) / path.replace(" ", "-")
            work.mkdir()
            fixed = Fixed(recipe, fleet_of(texts, inputs.settings, 0, work), work)
            for most in documents or (300, 1_000, 10_000):
                folder = work / str(most)
                folder.mkdir()
                owned = [passages(name, source, most) for name, source in inputs.sources.items()]
                pairs = list(zip(fixed.members, owned, strict=True))
                computing = Computing(
                    inputs.settings.device, cpu_count() or 1, key=token_bytes(32), progress=progress()
                )
                exact = [Exact.of(member, fixed.body, rows, folder, computing) for member, rows in pairs]
                plain = [
                    router_contribution(
                        member, fixed.body, rows, folder / f"{member.domain}.plain", _statistics(), computing
                    )
                    for member, rows in pairs
                ]
                count = f"{min(map(len, owned)):,}"
                runs = [experts, _row("no noise", fixed, plain)]
                for epsilon in EPSILONS:
                    privacy = Privacy(epsilon=epsilon)
                    files = [item.with_noise(privacy, folder / f"{item.expert.domain}.{epsilon}") for item in exact]
                    runs.append(_row(str(epsilon), fixed, files))
                table = measure(runs, texts, inputs.settings, NoProgress())
                row = [str(table.average(table.row(run.label))) for run in runs[1:]]
                print(f"| {path} | {count} | {' | '.join(row)} |", flush=True)
