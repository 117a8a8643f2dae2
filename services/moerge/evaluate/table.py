"""The paper's table (DUME section 3.1 and table 2): normalised perplexity of every model on every domain."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.table import Table as RichTable
from transformers import PreTrainedModel

from moerge.architectures.config import read_config
from moerge.architectures.families import family_of
from moerge.checkpoint.reader import Checkpoint
from moerge.evaluate.perplexity import Score, Window, load, score
from moerge.evaluate.routing import RoutingCounter, forced, randomised
from moerge.progress import Progress
from moerge.trunk.average import average
from moerge.trunk.domain_model import dense_model
from moerge.trunk.merge import AVERAGE, merge_plan

RANDOM_SEED = 0


@dataclass(frozen=True)
class Table:
    """Perplexities, and which experts the routers chose.

    Attributes:
        domains: the columns; `scores["<domain> expert"]` must hold the dense expert of each.
        scores: row -> domain -> score.
        shares: domain -> share of its tokens that each expert got, over all layers.
    """

    domains: tuple[str, ...]
    scores: Mapping[str, Mapping[str, Score]]
    shares: Mapping[str, Sequence[float]]

    def normalised(self, row: str) -> list[float]:
        """100 x the dense expert's perplexity on its own domain / this row's, per domain."""
        return [
            100 * self.scores[f"{domain} expert"][domain].perplexity / self.scores[row][domain].perplexity
            for domain in self.domains
        ]

    def average(self, row: str) -> float:
        """The normalised average perplexity score."""
        return sum(self.normalised(row)) / len(self.domains)

    def to_json(self) -> dict[str, object]:
        return {
            "domains": list(self.domains),
            "normalised": {row: dict(zip(self.domains, self.normalised(row), strict=True)) for row in self.scores},
            "average": {row: self.average(row) for row in self.scores},
            "perplexity": {row: {d: s.perplexity for d, s in scores.items()} for row, scores in self.scores.items()},
            "tokens": {domain: self.scores[f"{domain} expert"][domain].tokens for domain in self.domains},
            "shares": {domain: list(shares) for domain, shares in self.shares.items()},
        }

    def render(self) -> Iterable[RichTable]:
        """The two tables for a terminal."""
        main = RichTable(title="Normalised perplexity: 100 = the domain's own dense expert, higher is better")
        main.add_column("model")
        for column in (*self.domains, "average"):
            main.add_column(column, justify="right")
        for row in self.scores:
            cells = [f"{value:.1f}" for value in (*self.normalised(row), self.average(row))]
            main.add_row(row, *cells, style="bold" if row == "DUME" else "", end_section=row == "model averaging")
        yield main
        routing = RichTable(title="Share of tokens that each expert got, over all layers")
        routing.add_column("text of")
        for domain in self.domains:
            routing.add_column(f"{domain} expert", justify="right")
        for domain, shares in self.shares.items():
            routing.add_row(domain, *[f"{100 * share:.0f} %" for share in shares])
        yield routing


def measure(
    version: Path, experts: Mapping[str, Path], texts: Mapping[str, Sequence[Window]], progress: Progress
) -> Table:
    """Scores each dense expert, model averaging, random routing, the oracle and the version on every domain.

    Args:
        version: folder of a published version; its slots are `experts`, in this order.
        experts: domain -> dense checkpoint folder.
        texts: domain -> windows of its held-out documents.
    """
    domains = tuple(experts)
    models = len(domains) + 4
    total = models * sum(window.scored for cut in texts.values() for window in cut)
    rows: dict[str, dict[str, Score]] = {}
    with progress.track(f"scoring {models} models", total, "tokens") as tracker:
        for name, folder in experts.items():
            model = load(folder)
            rows[f"{name} expert"] = {domain: score(model, texts[domain], tracker) for domain in domains}
        averaged = _averaged(list(experts.values()))
        rows["model averaging"] = {domain: score(averaged, texts[domain], tracker) for domain in domains}
        model = load(version)
        with randomised(model, RANDOM_SEED):
            rows["random routing"] = {domain: score(model, texts[domain], tracker) for domain in domains}
        rows["oracle"] = {}
        for slot, domain in enumerate(domains):
            with forced(model, slot):
                rows["oracle"][domain] = score(model, texts[domain], tracker)
        rows["DUME"], shares = {}, {}
        for domain in domains:
            counter = RoutingCounter(model)
            with counter.counting():
                rows["DUME"][domain] = score(model, texts[domain], tracker, counter.count)
            total_counts = counter.counts.sum(dim=0)
            shares[domain] = (total_counts / total_counts.sum()).tolist()
    return Table(domains, rows, shares)


def _averaged(folders: Sequence[Path]) -> PreTrainedModel:
    """The dense model whose every parameter is the experts' mean."""
    config = read_config(folders[0])
    family, layers = family_of(config), config.num_hidden_layers
    checkpoints = [Checkpoint(folder) for folder in folders]
    state = {plan.name: plan.compute().float() for plan in merge_plan(checkpoints, family, layers, AVERAGE)}
    for name in family.dense_mlp_names(layers):
        state[name] = average([each.tensor(name) for each in checkpoints], torch.float32)
    return dense_model(config, state, torch.float32)
