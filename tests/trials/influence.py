"""`python -m trials.influence`: one owner's influence on the routers, by honest sums and by hostile ones.

The owner is the last of the demo's four. Rank, draws and moves are the worst of all domains, as measured by the
coordinator. Counted is the largest share of a domain's held-out tokens that go to another expert. Scores are normalised
perplexities.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median_low
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from transformers.utils.logging import disable_progress_bar

from moerge.files import atomic_file, cache_folder
from moerge.merging.local import LocalTrunk, given, local_trunk, local_version
from moerge.models.bounds import feature_gains
from moerge.models.expert_folder import DenseExpert
from moerge.progress import NoProgress, progress
from moerge.routers.influence import measure
from moerge.routers.solve import solve_layers
from moerge.scoring.perplexity import document_scores, normalised, total
from moerge.scoring.routers import RoutingCounter
from moerge.statistics.contribution import router_contribution, trunk_contribution
from moerge.versions.folder import write_folder
from moerge.versions.plan import plan_version
from moerge_lab.recipes.models import Loaded, Routed
from moerge_lab.table.measure import Texts
from moerge_lab.table.presets import PRESETS
from moerge_lab.table.texts import read_texts
from moerge_proto.options import PAPER, RECOMMENDED, SolveOptions
from moerge_proto.statistics_file import StatisticsFile, write
from trials.strays import first

TOKENS = 10_000
"""Of each domain's statistics."""
WARNED = {"span": "rank", "draw": "draws", "change": "moves"}
"""A verb of a warning -> its figure."""

Directions = Sequence[NDArray[np.float64]]
"""A feature's direction in each layer, [H]."""


class Fleet:
    """The demo's owners: experts and texts, their trunk, and the honest router contributions."""

    def __init__(self, home: Path) -> None:
        preset = PRESETS["demo"]
        sources, _ = preset.sources(cache_folder(), progress())
        self.home = home
        self.texts: list[Texts] = [read_texts(name, source, preset.cut) for name, source in sources.items()]
        self.experts = [DenseExpert(name, source.expert, name) for name, source in sources.items()]
        grams = [
            trunk_contribution(expert, first(texts.statistics, TOKENS), home / f"{expert.domain}.grams")
            for expert, texts in zip(self.experts, self.texts, strict=True)
        ]
        self.trunk: LocalTrunk = local_trunk(self.experts, home / "trunk", contributions=grams)
        self.honest = [self.sums(slot, {slot: TOKENS}) for slot in range(len(self.experts))]
        self.dense = [
            total(document_scores(Loaded.of(expert.folder).losses, texts.held_out, NoProgress()))
            for expert, texts in zip(self.experts, self.texts, strict=True)
        ]

    def sums(self, slot: int, tokens: Mapping[int, int]) -> Path:
        """A router contribution of one owner over given numbers of tokens of these domains' texts."""
        rows = [row for domain, most in tokens.items() for row in first(self.texts[domain].statistics, most)]
        return router_contribution(self.experts[slot], self.trunk, rows, self.home / f"{slot}-{[*tokens.items()]}")

    def direction(self, slots: Sequence[int]) -> Directions:
        """The mean of these owners' mean features."""
        with ExitStack() as stack:
            files = [stack.enter_context(StatisticsFile(self.honest[slot])) for slot in slots]
            return [
                np.mean([file.cross(layer) / file.manifest.tokens for file in files], axis=0)
                for layer in range(self.trunk.layers)
            ]

    def random(self) -> Directions:
        return [*np.random.default_rng(0).standard_normal((self.trunk.layers, self.trunk.hidden_size))]

    def changed(self, times: int, added: Directions = ()) -> Path:
        """The last owner's sums, `times` as large; or with `times` as many equal tokens of these directions added."""
        path = self.home / "changed"
        with StatisticsFile(self.honest[-1]) as file, atomic_file(path) as out:
            made, factor = file.manifest, 1 if added else times
            arrays = [factor * array for array in file.arrays()]
            for layer, direction in enumerate(added):
                unit = direction / np.linalg.norm(direction) * made.hidden_size**0.5
                count = times * made.tokens * 2.0 ** made.exponents[layer]
                arrays[2 * layer] += np.rint(count * np.outer(unit, unit)[np.triu_indices(len(unit))]).astype(np.int64)
                arrays[2 * layer + 1] += np.rint(count * unit).astype(np.int64)
            tokens = made.tokens * (1 + times if added else times)
            write(out, made.model_copy(update={"tokens": tokens}), arrays)
        return path

    def row(self, sent: Path, options: SolveOptions) -> str:
        """A table's cells, for versions with these sums of the last owner."""
        files, domains = [*self.honest[:-1], sent], [expert.domain for expert in self.experts]
        count, gains = len(domains), feature_gains(self.trunk)
        with ExitStack() as stack:
            opened = [stack.enter_context(StatisticsFile(file)) for file in files]
            result = measure(opened, domains, gains, options)
            routers = solve_layers(opened, domains, gains, options)[0]
        scores, counted = self.scored(routers)
        rows, slots = result.domains, range(count)
        pairs = [(rows[one], slot) for one in slots for slot in slots if one != slot]
        rank = min(
            rows[slot].effective_rank / median_low(rows[other].effective_rank for other in slots if other != slot)
            for slot in slots
        )
        moves = max(median_low(rows[one].moved[slot] for slot in slots if slot != one) for one in slots)
        shares = [max(row.drawn[slot] for row, slot in pairs), max(row.drawn_most[slot] for row, slot in pairs)]
        percent = " | ".join(f"{100 * share:.0f} %" for share in (*shares, moves, counted))
        warned = [name for verb, name in WARNED.items() if any(f" {verb} " in said for said in result.warnings)]
        others = " / ".join(f"{score:.0f}" for score in scores[:-1])
        return f"{rank:.2f} | {percent} | {', '.join(warned) or 'no'} | {others} | {scores[-1]:.0f}"

    def scored(self, routers: Sequence[Tensor]) -> tuple[list[float], float]:
        """Each domain's score; the largest share of a domain's tokens that go to another expert."""
        with TemporaryDirectory() as folder:
            lineage, inputs = local_version(self.experts, self.trunk, [])
            plan = plan_version(lineage, inputs, given(routers))
            model = Routed.of(write_folder(plan.files, Path(folder) / "version"))
        scores, strayed = [], []
        for slot, texts in enumerate(self.texts):
            counter = RoutingCounter(model.model)
            with counter.counting():
                result = total(document_scores(model.losses, texts.held_out, NoProgress(), counter.count))
            scores.append(normalised(self.dense[slot], result))
            shares = counter.counts.sum(dim=0) / counter.counts.sum()
            strayed += [float(share) for other, share in enumerate(shares) if other != slot]
        return scores, max(strayed)


def all_sums(fleet: Fleet) -> dict[str, Callable[[], Path]]:
    """The last owner's files: a name -> the function that makes the file."""
    own, others = len(fleet.experts) - 1, range(len(fleet.experts) - 1)
    third, one = TOKENS // len(others), 1
    return {
        "honest": lambda: fleet.honest[own],
        "honest, with 10 times less text": lambda: fleet.sums(own, {own: TOKENS // 10}),
        "honest, with 100 times less text": lambda: fleet.sums(own, {own: TOKENS // 100}),
        "honest, times 1000": lambda: fleet.changed(1000),
        "text of one other domain": lambda: fleet.sums(own, {one: TOKENS}),
        "text of all others": lambda: fleet.sums(own, dict.fromkeys(others, third)),
        "half of it text of another": lambda: fleet.sums(own, {own: TOKENS // 2, one: TOKENS // 2}),
        "own text and a spike as large, random": lambda: fleet.changed(1, fleet.random()),
        "the same, towards one other's mean": lambda: fleet.changed(1, fleet.direction([one])),
        "own text and a spike 1000 times as large, random": lambda: fleet.changed(1000, fleet.random()),
        "the same, towards the others' mean": lambda: fleet.changed(1000, fleet.direction(others)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--paper", action="store_true", help="with the paper's options instead of the recommended ones")
    disable_progress_bar()
    options = (PAPER if parser.parse_args().paper else RECOMMENDED).solve
    with TemporaryDirectory() as folder:
        fleet = Fleet(Path(folder))
        names = [expert.domain for expert in fleet.experts]
        head = "rank / others' | draws at most | in a layer | moves | counted | warned"
        print(f"| sums of {names[-1]} | {head} | {' / '.join(names[:-1])} | {names[-1]} |")
        print("|---" * 9 + "|")
        for name, make in all_sums(fleet).items():
            print(f"| {name} | {fleet.row(make(), options)} |", flush=True)


if __name__ == "__main__":
    main()
