"""`membership`: how well a router contribution shows whether a known document is among its documents."""

import random
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Annotated, NamedTuple

import torch
import typer
from torch import Tensor

from moerge.documents.corpus import Corpus
from moerge.merging.local_lineages import local_body
from moerge.models.batches import batches
from moerge.models.dense import domain_model
from moerge.models.expert_folder import DenseExpert
from moerge.models.families.family import mlp_layers
from moerge.models.tokens import Tokens
from moerge.statistics.features import ready, run
from moerge_lab.table.texts import Sources
from moerge_lab.trials.inputs import inputs_of, print_head

CANDIDATES = 200
"""Tested documents of the contribution, and as many others."""
FALSE_ALARMS = 0.01
_SHORTEST, _BATCH = 16, 16  # tokens of a document, documents
_LEAST_VARIANCE, _LEAST_OF_GRAMS = 1e-3, 0.1  # in units of the mean one
_PARTS = "training", "tuning", "text", "held_out", "other"

Features = list[Tensor]
"""Of each document the features in every layer, divided by the gains: [L, tokens, H] float16."""


class Success(NamedTuple):
    """Of an attack: the area under its curve, and the share of members found at `FALSE_ALARMS`."""

    auc: float
    found: float

    @classmethod
    def of(cls, members: Tensor, others: Tensor) -> "Success":
        """By scores of documents that are in the sums, and of others."""
        above = (members[:, None] > others).double() + (members[:, None] == others).double() / 2
        limit = others.quantile(1 - FALSE_ALARMS, interpolation="higher")
        return cls(float(above.mean()), float((members > limit).double().mean()))


def features_of(domain: str, sources: Sources, seed: Path, tokens: int, home: Path) -> Features:
    """The features of a domain's documents under the seed's body, in random order."""
    expert = DenseExpert(domain, sources.expert)
    body = local_body([expert], home / "body", "seed", base=DenseExpert("seed", seed))
    corpus = Corpus([file for part in _PARTS for file in getattr(sources, part)], expert)
    unique = {document.text: document for _, _, document in corpus.documents()}
    rows = [Tokens(corpus.encode(document).ids[:tokens]) for document in unique.values()]
    rows = [row for row in rows if len(row) >= _SHORTEST]
    random.Random(0).shuffle(rows)  # noqa: S311  # no secret
    model, gains = domain_model(expert, body)
    modules = [expert.family.mlp_module.format(layer=layer) for layer in mlp_layers(expert.config)]
    mlps, result = dict(enumerate(map(model.get_submodule, modules))), Features()
    seen = list[Tensor]()

    def visit(layer: int, x: Tensor) -> None:
        seen.append(x / gains[layer])

    for start in range(0, len(rows), _BATCH):
        [batch] = batches(some := rows[start : start + _BATCH], len(some) * tokens)
        seen.clear()
        run(model, ready(model, batch, model.device), {"input_ids": batch.input_ids}, mlps, visit, mlps[len(mlps) - 1])
        result += torch.stack(seen).half().split(batch.lengths.tolist(), dim=1)
    return result


def _gram(features: Features, layer: int) -> Tensor:
    """[H, H] float64: a layer's sum over documents."""
    joined = torch.cat([document[layer] for document in features]).float()
    return (joined.T @ joined).double()


def _entries(square: Tensor) -> Tensor:
    """The upper triangle of a symmetric matrix, with the same scalar product."""
    upper = torch.triu_indices(len(square), len(square))
    return square[upper[0], upper[1]] * torch.where(upper[0] == upper[1], 1.0, 2**0.5)


def likelihoods(sums: Tensor, documents: int, layer: int, tested: Features, others: Features) -> Tensor:
    """[tested] float64: log likelihoods that a document is in a layer's sums, but for a common constant and factor.

    In directions in which features have equal variance, grams of documents are taken as normally distributed, with the
    mean and the shrunk covariance of the others'.

    Args:
        sums: [H, H] float64, the gram over `documents`.
        tested: documents that the attacker has.
        others: further ones of the domain, which are not in the sums.
    """
    variances, directions = torch.linalg.eigh(_gram(others, layer) / sum(item.shape[1] for item in others))
    scale = directions / (variances.clamp_min(0) + _LEAST_VARIANCE * variances.mean()).sqrt()

    def grams(features: Features) -> Tensor:
        return torch.stack(
            [_entries(part.T @ part) for part in (item[layer].float() @ scale.float() for item in features)]
        )

    known = grams(others)
    mean = known.mean(dim=0)
    known -= mean
    candidates = (grams(tested) - mean).double()
    excess = _entries((scale.T @ sums @ scale).float()).sub_(documents * mean).double()
    products = (known @ known.T).double() / len(others)
    own, basis = torch.linalg.eigh(products)
    least = _LEAST_OF_GRAMS * own.mean()
    wide = (known.double().T @ basis) / len(others) ** 0.5  # [entries, others]: directions times deviations
    shrunk = (candidates @ wide) * (excess @ wide / (own.clamp_min(0) + least))
    result: Tensor = (candidates @ excess - shrunk.sum(dim=1)) / least
    return result


def attacked(features: Features, documents: int, others: int, trial: int) -> Success:
    """The attack on the sums over so many random documents, by someone with `others` that are not in them."""
    order = random.Random(trial).sample(features, len(features))  # noqa: S311  # no secret
    members, rest = order[:documents], order[documents:]
    tested, known = members[:CANDIDATES] + rest[:CANDIDATES], rest[CANDIDATES:][:others]
    scores = torch.zeros(len(tested), dtype=torch.float64)
    for layer in range(len(features[0])):
        scores += likelihoods(_gram(members, layer), documents, layer, tested, known)
    among = min(documents, CANDIDATES)
    return Success.of(scores[:among], scores[among:])


def _cell(results: Sequence[Success]) -> str:
    if not results:
        return "too little text"
    auc, found = (fmean(values) for values in zip(*results, strict=True))
    return f"{auc:.2f} ({100 * found:.0f} %)"


def membership(
    domain: Annotated[list[str] | None, typer.Option(help="Whose text. Default: all of the preset.")] = None,
    documents: Annotated[list[int] | None, typer.Option(help="Of a contribution.")] = None,
    tokens: Annotated[int, typer.Option(min=_SHORTEST, help="Most of each document.")] = 128,
    others: Annotated[int, typer.Option(min=2, help="Documents of the domain that the attacker has besides.")] = 300,
    trials: Annotated[int, typer.Option(min=1, help="Random choices of documents.")] = 3,
) -> None:
    """Measure how well someone with a document can tell whether it is in a router contribution.

    The attacker has the sums, the model, and other documents of the domain. Figures are the area under the curve of the
    likelihood ratio, and in brackets the share of documents that are found at 1 % false alarms. Documents are all of a
    domain's text; the expert was trained on some.
    """
    _, sources, seed, _ = inputs_of("small")
    domains, numbers = domain or list(sources), documents or [100, 300, 1000, 3000]
    results = dict[str, list[str]]()
    for name in domains:
        with TemporaryDirectory() as home:
            features = features_of(name, sources[name], seed, tokens, Path(home))
        fits = [number + CANDIDATES + others <= len(features) for number in numbers]
        results[name] = [
            _cell([attacked(features, number, others, trial) for trial in range(trials)] if fit else [])
            for number, fit in zip(numbers, fits, strict=True)
        ]
    print_head("documents", *domains)
    for number, cells in zip(numbers, zip(*results.values(), strict=True), strict=True):
        print(f"| {number:,} | {' | '.join(cells)} |", flush=True)
