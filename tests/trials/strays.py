"""`python -m trials.strays`: distances of experts; stray and loss of each method's trunks, as measured by owners.

By default the experts are the demo's; `--expert`, `--text` and `--seed` name others. Each trunk is merged from all
experts, and for each owner from all others; if that is one, from it and the seed model. A crafted trunk is the owner's
own with a change. Each figure is the largest of all owners; the loss is the perplexity of text under trunk and own
MLPs, divided by the expert's.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import save_file
from torch import Tensor

from moerge.files import cache_folder
from moerge.merging.local import local_trunk
from moerge.models.dense import domain_model, expert_model, trunk_names
from moerge.models.dense_files import DenseFiles, DenseTrunk
from moerge.models.distance import distance
from moerge.models.expert_folder import DenseExpert
from moerge.models.families import EMBEDDING, HEAD
from moerge.models.tokens import Tokens
from moerge.progress import NoProgress, progress
from moerge.scoring.draw import Cut
from moerge.scoring.perplexity import Score, Window, score, windows
from moerge.statistics.contribution import trunk_contribution
from moerge.trunk.methods.registry import METHODS
from moerge.trunk.stray import require_near
from moerge_lab.table.presets import PRESETS
from moerge_lab.table.texts import Sources, read_texts
from moerge_proto.trunks import TrunkMethod, TrunkOptions
from moerge_workers.contributing.trunk_check import TOKENS

TRUNKS: tuple[tuple[str, TrunkMethod, TrunkOptions], ...] = (
    ("average", "average", TrunkOptions()),
    ("weighted, one expert 3 times", "weighted", TrunkOptions()),
    ("base", "base", TrunkOptions()),
    ("ties", "ties", TrunkOptions()),
    ("ties, scale 1", "ties", TrunkOptions(scale=1.0)),
    ("dare", "dare", TrunkOptions()),
    ("dare, scale 1, retain 0.2", "dare", TrunkOptions(scale=1.0, retain=0.2)),
    ("regmean", "regmean", TrunkOptions()),
    ("regmean-fitted", "regmean-fitted", TrunkOptions()),
)


def output_times(factor: float) -> Callable[[str, Tensor], Tensor]:
    return lambda name, tensor: factor * tensor if name.endswith("self_attn.o_proj.weight") else tensor


def noise(size: float) -> Callable[[str, Tensor], Tensor]:
    """Noise of this share of each tensor's norm."""
    generator = torch.Generator().manual_seed(0)

    def noisy(name: str, tensor: Tensor) -> Tensor:
        drawn = torch.randn(tensor.shape, generator=generator)
        return torch.add(tensor, drawn, alpha=size * float(tensor.norm() / drawn.norm()))

    return noisy


CRAFTED: tuple[tuple[str, Callable[[str, Tensor], Tensor]], ...] = (
    ("crafted: attention output zero", output_times(0)),
    ("crafted: attention output negated", output_times(-1)),
    *((f"crafted: noise of {size}", noise(size)) for size in (0.2, 0.5, 1.0)),
)
KINDS = {
    "self_attn": "attention",
    "mlp": "MLPs",
    EMBEDDING: "embedding, head",
    HEAD: "embedding, head",
    "": "a row of these",
    "norm": "norms",
}
"""A part of tensors' names -> their label."""


@dataclass(frozen=True)
class Owner:
    """An expert, its trunk contribution for comparing trunks, and the text to score."""

    expert: DenseExpert
    grams: Path
    sample: Sequence[Window]
    own: Score

    def judge(self, trunk: Path) -> tuple[float, float, float, float]:
        """Tensor, size and row of the stray; the loss."""
        result = require_near(self.expert, DenseTrunk(trunk, self.expert), float("inf"), self.grams)
        with NoProgress().track("", 0, "") as tracker:
            under = score(domain_model(self.expert, DenseTrunk(trunk, self.expert))[0], self.sample, tracker)
        return result.tensor.value, result.size.value, result.row.value, under.perplexity / self.own.perplexity

    def crafted(self, change: Callable[[str, Tensor], Tensor], path: Path) -> Path:
        """The expert's own trunk, changed."""
        checkpoint = self.expert.checkpoint
        names = trunk_names(self.expert)
        save_file({name: change(name, checkpoint.tensor(name)) for name in names}, path)
        return path


def trunk_of(owners: Sequence[Owner], seed: Owner, method: TrunkMethod, options: TrunkOptions, folder: Path) -> Path:
    """A trunk of these owners' experts."""
    kind, merged = METHODS[method], owners if len(owners) > 1 else [*owners, seed]
    if "weights" in kind.needs:
        options = options.model_copy(update={"weights": {owners[0].expert.domain: 3.0}})
    contributions = [owner.grams for owner in merged] if kind.solved else []
    base = seed.expert if "base" in kind.needs else None
    return local_trunk([owner.expert for owner in merged], folder, method, contributions, options, base=base).path


def largest(figures: Sequence[tuple[float, ...]]) -> str:
    """A table's cells."""
    most = map(max, zip(*figures, strict=True))
    return " | ".join(f"{item:.2f}" if item < 10 else f"{item:.0f}" if item < 1000 else "over 1000" for item in most)


def print_distances(experts: Sequence[DenseExpert]) -> None:
    result = dict.fromkeys(KINDS.values(), 0.0)
    for one, two in combinations(experts, 2):
        for name in one.checkpoint.specs:
            kind = next(kind for part, kind in KINDS.items() if part and part in name)
            apart = distance(one.checkpoint.tensor(name), two.checkpoint.tensor(name), rows=name in (EMBEDDING, HEAD))
            for measured, value in ((kind, apart.whole), (KINDS[""], apart.row)):
                result[measured] = max(result[measured], value)
    print(f"| largest distance | {' | '.join(result)} |")
    print("|---" * (1 + len(result)) + "|")
    print(f"| of two experts | {' | '.join(f'{item:.3f}' for item in result.values())} |\n")


def print_trunks(owners: Sequence[Owner], seed: Owner, home: Path) -> None:
    print("| trunk | tensor | size | row | loss | tensor, newcomer | size | row | loss |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, method, options in TRUNKS:
        whole = trunk_of(owners, seed, method, options, home / "whole")
        members = largest([owner.judge(whole) for owner in owners])
        newcomers = []
        for owner in owners:
            others = [item for item in owners if item is not owner]
            newcomers.append(owner.judge(trunk_of(others, seed, method, options, home / "others")))
        print(f"| {name} | {members} | {largest(newcomers)} |", flush=True)
    for name, change in CRAFTED:
        print(f"| {name} | {largest([owner.judge(owner.crafted(change, home / 'crafted')) for owner in owners])} |")


def owner_of(domain: str, expert: Path, rows: Sequence[Sequence[int]], tokens: int, home: Path) -> Owner:
    """An owner whose grams and score are over its first rows."""
    own = DenseExpert(domain, expert)
    sample = windows(first(rows, TOKENS), 2**20, 2**20 - 1)
    with NoProgress().track("", 0, "") as tracker:
        dense = score(expert_model(DenseFiles(expert)), sample, tracker)
    return Owner(own, trunk_contribution(own, first(rows, tokens), home / f"{domain}.grams"), sample, dense)


def first(rows: Sequence[Sequence[int]], tokens: int) -> list[Tokens]:
    """The first rows, up to a number of tokens."""
    taken, total = list[Tokens](), 0
    for row in rows:
        if total >= tokens:
            break
        taken.append(Tokens(row))
        total += len(row)
    return taken


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--tokens", type=int, default=12_288, help="of each owner's text (12288: 64 H of the demo's)")
    for name in ("--expert", "--text"):
        options.add_argument(name, action="append", default=[], help="DOMAIN=PATH")
    options.add_argument("--seed", type=Path, help="folder of the seed model")
    given = options.parse_args()
    sources: Mapping[str, Sources]
    if given.expert:
        texts = dict(item.split("=", 1) for item in given.text)
        named = dict(item.split("=", 1) for item in given.expert)
        sources = {domain: Sources(Path(folder), [texts[domain]]) for domain, folder in named.items()}
        seed = given.seed
    else:
        sources, seed = PRESETS["demo"].sources(cache_folder(), progress())
    with TemporaryDirectory() as folder:
        home = Path(folder)
        rows = {domain: read_texts(domain, source, Cut()).statistics for domain, source in sources.items()}
        owners = [
            owner_of(domain, source.expert, rows[domain], given.tokens, home) for domain, source in sources.items()
        ]
        mixed = [row for several in zip(*rows.values(), strict=False) for row in several]
        print_distances([owner.expert for owner in owners])
        print_trunks(owners, owner_of("seed", seed, mixed, given.tokens, home), home)


if __name__ == "__main__":
    main()
