"""`python -m trials.ranks [RECIPE ...]`: scores and sizes over the rank of the experts' MLPs.

An expert's MLPs are the seed's plus the difference's part of each rank; all else is the expert's own. Scores are
normalised by the experts as trained. The first line of a rank has the experts alone, each on its own domain; the
others have versions by the recipes. Bytes are those of the weights that a worker sends.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from unittest.mock import patch

import torch
from torch import Tensor
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from moerge.experts.factors import Difference
from moerge.experts.low_rank import low_rank_expert
from moerge.files import cache_folder
from moerge.models.adapters import WEIGHTS
from moerge.models.expert_folder import DenseExpert
from moerge.models.low_rank import low_rank_of
from moerge.progress import NoProgress, progress
from moerge.scoring.perplexity import Score, document_scores, normalised, total
from moerge_lab.recipes.base import Model
from moerge_lab.recipes.models import Loaded
from moerge_lab.recipes.registry import parse
from moerge_lab.table.measure import Settings, Texts, fleet_of
from moerge_lab.table.presets import PRESETS
from moerge_lab.table.texts import Cut, read_texts
from moerge_proto.experts import Rank
from trials.output import write

RANKS = ("full", "auto", "64", "16", "4", "1")
RECIPES = ("moerge", "dume")
SILENT = NoProgress()


def reduced(domains: Mapping[str, Texts], base: Path, rank: Rank, home: Path) -> tuple[dict[str, Texts], int, str]:
    """The domains with experts of a rank, the most bytes that one of them sends, and its record."""
    found, size, record = dict(domains), 0, ""
    for name, each in domains.items():
        own = DenseExpert(name, each.expert)
        made = low_rank_expert(own, DenseExpert("base", base), rank, home, progress())
        known = low_rank_of(made.folder, made.files)
        assert known is not None
        size, record = max(size, (made.folder / WEIGHTS).stat().st_size), str(known)
        found[name] = replace(each, expert=made.folder)
    return found, size, record


def scores(model: Model, domains: Mapping[str, Texts]) -> dict[str, Score]:
    with SILENT.track("", 0, "") as tracker:
        return {
            name: total(document_scores(model.losses, each.held_out, tracker, domain=name))
            for name, each in domains.items()
        }


def once(decompose: Callable[[Tensor, Tensor], Difference]) -> Callable[[Tensor, Tensor], Difference]:
    """The same function, with each decomposition computed once."""
    known = dict[tuple[bytes, bytes], tuple[Tensor, Tensor]]()

    def of(base: Tensor, own: Tensor) -> Difference:
        key = (digest(base), digest(own))
        if key not in known:
            known[key] = decompose(base, own)[1:]
        matrix = own.double() - base.double()
        return Difference(matrix if len(matrix) <= matrix.shape[1] else matrix.T, *known[key])

    return of


def digest(tensor: Tensor) -> bytes:
    return sha256(tensor.flatten().view(torch.uint8).numpy().data).digest()


def alone(domains: Mapping[str, Texts]) -> dict[str, Score]:
    """Each expert's score on its own domain."""
    found = dict[str, Score]()
    for name, each in domains.items():
        found |= scores(Loaded.of(each.expert), {name: each})
    return found


def versions(
    specs: Sequence[str], domains: Mapping[str, Texts], settings: Settings
) -> Iterator[tuple[str, dict[str, Score]]]:
    """The row of each recipe's model, with its scores."""
    for spec in specs:
        recipe, options, label = parse(spec)
        with TemporaryDirectory() as work:
            fleet = fleet_of(domains, settings, 0, Path(work), progress=progress())
            for _, model in recipe.build(fleet, options):
                yield label, scores(model, domains)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", default=RECIPES, metavar="RECIPE")
    parser.add_argument("--preset", default="smollm", choices=sorted(PRESETS))
    parser.add_argument("--ranks", default=",".join(RANKS), help="numbers, auto and full")
    parser.add_argument("--domains", help="some of the preset's; default: all")
    parser.add_argument("--tokens", type=int, help="scored tokens of each domain; default: the preset's")
    parser.add_argument("--statistics-tokens", type=int, help="of each domain; default: the preset's")
    parser.add_argument("--context", type=int, help="of the models; windows advance by half of it")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    set_verbosity_error()
    disable_progress_bar()
    preset = PRESETS[chosen.preset]
    context = chosen.context or preset.cut.context
    cut = Cut(context, context // 2, chosen.tokens or preset.cut.tokens)
    sources, base = preset.sources(cache_folder(), 1, progress())
    settings = Settings(base, 1, chosen.statistics_tokens or preset.statistics_tokens)
    names = chosen.domains.split(",") if chosen.domains else list(sources)
    domains = {name: read_texts(name, sources[name], cut) for name in names}
    own, rows, decomposed = alone(domains), list[dict[str, object]](), once(Difference.of)
    print("| rank | model | " + " | ".join(domains) + " | average | MB |")
    print("|---" * (len(domains) + 4) + "|")

    def tell(rank: str, model: str, found: Mapping[str, Score], size: int) -> None:
        cells = {name: normalised(own[name], found[name]) for name in domains}
        average = fmean(cells.values())
        rows.append({"rank": rank, "model": model, "normalised": cells, "average": average, "bytes": size})
        figures = " | ".join(f"{each:.2f}" for each in (*cells.values(), average))
        print(f"| {rank} | {model} | {figures} | {size / 1e6:.0f} |", flush=True)
        write(rows, chosen.json)

    for rank in chosen.ranks.split(","):
        with TemporaryDirectory() as home, patch.object(Difference, "of", decomposed):
            if rank == "full":
                given, label = domains, "full"
                size = max(
                    sum(at.bytes for at in DenseExpert(name, each.expert).checkpoint.specs.values())
                    for name, each in domains.items()
                )
            else:
                given, size, label = reduced(domains, base, "auto" if rank == "auto" else int(rank), Path(home))
                tell(label, "experts alone", alone(given), size)
            for name, found in versions(chosen.recipes, given, settings):
                tell(label, name, found, size)


if __name__ == "__main__":
    main()
