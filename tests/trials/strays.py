"""`python -m trials.strays`: how far honest trunks stray, as their owners measure it, by each method.

By default the experts are the demo's; `--expert`, `--text` and `--seed` name others. Each trunk is merged of all
experts, and for each owner of all others; if that is one, of it and the seed model.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from moerge.files import cache_folder
from moerge.merging.local import local_trunk
from moerge.models.expert_folder import DenseExpert
from moerge.models.tokens import Tokens
from moerge.progress import progress
from moerge.statistics.contribution import trunk_contribution
from moerge.table.presets import PRESETS
from moerge.table.texts import Cut, Sources, read_texts
from moerge.trunk.methods.registry import METHODS
from moerge.trunk.stray import Stray, require_near
from moerge_proto.trunks import TrunkMethod, TrunkOptions

TRUNKS: tuple[tuple[str, TrunkMethod, TrunkOptions], ...] = (
    ("average", "average", TrunkOptions()),
    ("weighted, one expert 3 times", "weighted", TrunkOptions()),
    ("base", "base", TrunkOptions()),
    ("ties", "ties", TrunkOptions()),
    ("ties, scale 1", "ties", TrunkOptions(scale=1.0)),
    ("dare", "dare", TrunkOptions()),
    ("dare, scale 1, retain 0.2", "dare", TrunkOptions(scale=1.0, retain=0.2)),
    ("regmean", "regmean", TrunkOptions()),
    ("regmean, context head", "regmean", TrunkOptions(context_head=True)),
    ("moerge", "moerge", TrunkOptions()),
    ("moerge, context head", "moerge", TrunkOptions(context_head=True)),
)


@dataclass(frozen=True)
class Owner:
    """An expert, and its trunk contribution, with which its owner compares trunks."""

    expert: DenseExpert
    grams: Path

    def stray(self, trunk: Path) -> Stray:
        return require_near(self.expert.folder, trunk, float("inf"), self.grams, context_head=True)


def trunk_of(owners: Sequence[Owner], seed: Owner, method: TrunkMethod, options: TrunkOptions, folder: Path) -> Path:
    """A trunk of these owners' experts."""
    kind, merged = METHODS[method], owners if len(owners) > 1 else [*owners, seed]
    if "weights" in kind.needs:
        options = options.model_copy(update={"weights": {owners[0].expert.domain: 3.0}})
    contributions = [owner.grams for owner in merged] if kind.solved else []
    base = seed.expert if "base" in kind.needs else None
    return local_trunk([owner.expert for owner in merged], folder, method, contributions, options, base=base).path


def furthest(strays: Sequence[Stray]) -> str:
    """A table's cells: the largest of each measure."""
    return " | ".join(
        f"{max(getattr(stray, measure).value for stray in strays):.2f}" for measure in ("tensor", "size", "row")
    )


def measure(owners: Sequence[Owner], seed: Owner, home: Path) -> None:
    print("| trunk | tensor | size | row | tensor, newcomer | size | row |")
    print("|---|---|---|---|---|---|---|")
    for name, method, options in TRUNKS:
        whole = trunk_of(owners, seed, method, options, home / "whole")
        members = furthest([owner.stray(whole) for owner in owners])
        newcomers = []
        for owner in owners:
            others = [each for each in owners if each is not owner]
            newcomers.append(owner.stray(trunk_of(others, seed, method, options, home / "others")))
        print(f"| {name} | {members} | {furthest(newcomers)} |", flush=True)


def owner_of(domain: str, expert: Path, rows: Sequence[Sequence[int]], tokens: int, home: Path) -> Owner:
    """An owner whose grams are over its first rows."""
    taken, total = [], 0
    for row in rows:
        if total >= tokens:
            break
        taken.append(Tokens(row))
        total += len(row)
    own = DenseExpert(domain, expert)
    return Owner(own, trunk_contribution(own, taken, home / f"{domain}.grams"))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--tokens", type=int, default=12_288, help="of each owner's text (12288: 64 H of the demo's)")
    for name in ("--expert", "--text"):
        options.add_argument(name, action="append", default=[], help="DOMAIN=PATH")
    options.add_argument("--seed", type=Path, help="folder of the model that the experts were trained from")
    given = options.parse_args()
    sources: Mapping[str, Sources]
    if given.expert:
        texts = dict(each.split("=", 1) for each in given.text)
        named = dict(each.split("=", 1) for each in given.expert)
        sources = {domain: Sources(Path(folder), [texts[domain]]) for domain, folder in named.items()}
        seed = given.seed
    else:
        sources, seed = PRESETS["demo"].sources(cache_folder(), 1, progress())
    with TemporaryDirectory() as folder:
        home = Path(folder)
        rows = {domain: read_texts(domain, each, Cut()).statistics for domain, each in sources.items()}
        owners = [owner_of(domain, each.expert, rows[domain], given.tokens, home) for domain, each in sources.items()]
        mixed = [row for several in zip(*rows.values(), strict=False) for row in several]
        measure(owners, owner_of("seed", seed, mixed, given.tokens, home), home)


if __name__ == "__main__":
    main()
