"""`influence`: one owner's influence on the routers, by honest sums and by hostile ones."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import permutations
from pathlib import Path
from statistics import median_low
from tempfile import TemporaryDirectory
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray

from moerge.files import atomic_file
from moerge.influence import measure
from moerge.merging.local_lineages import given, local_body, local_version
from moerge.models.bounds import feature_gains
from moerge.models.expert_folder import DenseExpert
from moerge.progress import NoProgress
from moerge.scoring.perplexity import document_scores, normalised, total
from moerge.scoring.routers import RoutingCounter
from moerge.statistics.contribution import body_contribution, head_contribution, router_contribution
from moerge.versions.folder import write_folder
from moerge.versions.version_plan import plan_version, solve_lineage
from moerge_lab.recipes.models import Loaded, Routed
from moerge_lab.trials.inputs import first, inputs_of, print_head
from moerge_proto.recipes import RECOMMENDED
from moerge_proto.statistics_file import StatisticsFile, write

WARNED = {"span": "rank", "draw": "draws", "change": "moves"}
"""A verb of a warning -> its figure."""
Directions = Sequence[NDArray[np.float64]]
"""A feature's direction in each layer, [H]."""


class Fleet:
    """Four owners: experts and texts, their body, and the honest router contributions."""

    def __init__(self, tokens: int, home: Path) -> None:
        inputs, self.home = inputs_of("small"), home
        self.texts = list(inputs.texts().values())
        self.experts = [DenseExpert(name, source.expert, name) for name, source in inputs.sources.items()]
        grams, self.heads = list[Path](), list[Path]()
        for expert, texts in zip(self.experts, self.texts, strict=True):
            rows = first(texts.statistics, tokens)
            grams.append(body_contribution(expert, rows, home / f"{expert.domain}.grams"))
            self.heads.append(head_contribution(expert, rows, home / f"{expert.domain}.head"))
        self.body = local_body(self.experts, home / "body", contributions=grams)
        self.honest = [self.sums(slot, {slot: tokens}) for slot in range(len(self.experts))]
        self.dense = [
            total(document_scores(Loaded.of(expert.folder).losses, texts.held_out, NoProgress()))
            for expert, texts in zip(self.experts, self.texts, strict=True)
        ]

    def sums(self, slot: int, tokens: Mapping[int, int]) -> Path:
        """A router contribution of one owner over given numbers of tokens of these domains' texts."""
        rows = [row for domain, most in tokens.items() for row in first(self.texts[domain].statistics, most)]
        return router_contribution(self.experts[slot], self.body, rows, self.home / f"{slot}-{[*tokens.items()]}")

    def direction(self, slots: Sequence[int]) -> Directions:
        """The mean of these owners' mean features; without owners random."""
        if not slots:
            return [*np.random.default_rng(0).standard_normal((self.body.layers, self.body.hidden_size))]
        with ExitStack() as stack:
            files = [stack.enter_context(StatisticsFile(self.honest[slot])) for slot in slots]
            means = [[file.cross(layer) / file.manifest.tokens for file in files] for layer in range(self.body.layers)]
            return [np.mean(features, axis=0) for features in means]

    def changed(self, times: int, added: Directions = ()) -> Path:
        """The last owner's sums, `times` as large; or with `times` as many equal tokens of these directions added."""
        path = self.home / "changed"
        with StatisticsFile(self.honest[-1]) as file, atomic_file(path) as out:
            manifest = file.manifest
            arrays = [(1 if added else times) * array for array in file.arrays()]
            for layer, direction in enumerate(added):
                unit = direction / np.linalg.norm(direction) * manifest.hidden_size**0.5
                count = times * manifest.tokens * 2.0 ** manifest.exponents[layer]
                arrays[2 * layer] += np.rint(count * np.outer(unit, unit)[np.triu_indices(len(unit))]).astype(np.int64)
                arrays[2 * layer + 1] += np.rint(count * unit).astype(np.int64)
            tokens = manifest.tokens * (1 + times if added else times)
            write(out, manifest.model_copy(update={"tokens": tokens}), arrays)
        return path

    def row(self, sent: Path) -> str:
        """A table's cells, for versions with these sums of the last owner."""
        files, domains = [*self.honest[:-1], sent], [expert.domain for expert in self.experts]
        with ExitStack() as stack:
            opened = [stack.enter_context(StatisticsFile(file)) for file in files]
            result = measure(opened, domains, feature_gains(self.body), RECOMMENDED.solve)
        rows, slots = result.domains, range(len(domains))
        ranks, pairs = [row.effective_rank for row in rows], [*permutations(slots, 2)]
        rank = min(ranks[slot] / median_low(ranks[:slot] + ranks[slot + 1 :]) for slot in slots)
        moves = max(median_low(rows[one].moved[slot] for slot in slots if slot != one) for one in slots)
        draws = [max(rows[one].drawn[two] for one, two in pairs), max(rows[one].drawn_most[two] for one, two in pairs)]
        scores, counted = self.scored(files)
        percent = " | ".join(f"{100 * share:.0f} %" for share in (*draws, moves, counted))
        warned = [name for verb, name in WARNED.items() if any(f" {verb} " in warning for warning in result.warnings)]
        others = " / ".join(f"{score:.0f}" for score in scores[:-1])
        return f"{rank:.2f} | {percent} | {', '.join(warned) or 'no'} | {others} | {scores[-1]:.0f}"

    def scored(self, files: Sequence[Path]) -> tuple[list[float], float]:
        """Each domain's score; the largest share of a domain's tokens that go to another expert."""
        heads = self.heads
        routers = solve_lineage(*local_version(self.experts, self.body, files, head_contributions=heads))[0]
        plan = plan_version(*local_version(self.experts, self.body, [], head_contributions=heads), given(routers))
        scores, strayed = [], 0.0
        with TemporaryDirectory() as folder:
            model = Routed.of(write_folder(plan.files, Path(folder) / "version"))
        for slot, texts in enumerate(self.texts):
            counter = RoutingCounter(model.model)
            with counter.counting():
                result = total(document_scores(model.losses, texts.held_out, NoProgress(), [counter.count]))
            scores.append(normalised(self.dense[slot], result))
            shares = (counter.counts.sum(dim=0) / counter.counts.sum()).tolist()
            strayed = max(strayed, *shares[:slot], *shares[slot + 1 :])
        return scores, strayed


def influence(
    tokens: Annotated[int, typer.Option(min=1, help="Of each domain's statistics.")] = 10_000,
) -> None:
    """Measure the influence of the last of four owners on the routers, by honest and by hostile sums.

    Rank, draws and moves are the worst of all domains, as measured by the coordinator. Counted is the largest share of
    a domain's held-out tokens that go to another expert. Scores are normalised perplexities.
    """
    with TemporaryDirectory() as folder:
        fleet = Fleet(tokens, Path(folder))
        *others, own = range(len(fleet.experts))
        sums: dict[str, Callable[[], Path]] = {
            "honest": lambda: fleet.honest[own],
            "honest, with 10 times less text": lambda: fleet.sums(own, {own: tokens // 10}),
            "honest, with 100 times less text": lambda: fleet.sums(own, {own: tokens // 100}),
            "honest, times 1000": lambda: fleet.changed(1000),
            "text of one other domain": lambda: fleet.sums(own, {1: tokens}),
            "text of all others": lambda: fleet.sums(own, dict.fromkeys(others, tokens // len(others))),
            "half of it text of another": lambda: fleet.sums(own, {own: tokens // 2, 1: tokens // 2}),
            "own text and a spike as large, random": lambda: fleet.changed(1, fleet.direction([])),
            "the same, towards one other's mean": lambda: fleet.changed(1, fleet.direction([1])),
            "own text and a spike 1000 times as large, random": lambda: fleet.changed(1000, fleet.direction([])),
            "the same, towards the others' mean": lambda: fleet.changed(1000, fleet.direction(others)),
        }
        names = [expert.domain for expert in fleet.experts]
        figures = ("rank / others'", "draws at most", "in a layer", "moves", "counted", "warned")
        print_head(f"sums of {names[-1]}", *figures, " / ".join(names[:-1]), names[-1])
        for name, make in sums.items():
            print(f"| {name} | {fleet.row(make())} |", flush=True)
