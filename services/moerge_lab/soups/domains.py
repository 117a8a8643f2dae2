"""Pretraining domains: clusters of documents by mean hidden states, and mixtures of them (SoE 2.1, 2.4)."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from transformers import PreTrainedModel

from moerge.errors import MoergeError
from moerge.models.batches import bucket, pad
from moerge.progress import Progress
from moerge_lab.training.batches import joined

POOL = 2
"""Tokens of pooled text per token of training: further documents are left out, for each costs a pass of the seed."""
_BATCH_TOKENS = 4096
_ITERATIONS = 50


@dataclass(frozen=True)
class Clusters:
    """Clusters of vectors by their centroids, [N, H] float32."""

    centroids: Tensor

    def nearest(self, vectors: Tensor) -> Tensor:
        """[n] int64: the nearest centroid of each vector [n, H]."""
        return torch.cdist(vectors.double(), self.centroids.double()).argmin(dim=1)

    def weights(self, vectors: Tensor) -> Tensor:
        """[N] float32: the share of the vectors nearest to each centroid (SoE algorithm 3)."""
        return torch.bincount(self.nearest(vectors), minlength=len(self.centroids)) / len(vectors)


class Domains(NamedTuple):
    """Pretraining domains: clusters of documents, and the rows of each one's text, [n, context] int64."""

    clusters: Clusters
    rows: Sequence[Tensor]


def pooled(documents: Sequence[Sequence[Sequence[int]]], tokens: int, seed: int) -> list[Sequence[int]]:
    """Documents of several texts for a training: up to `POOL` x `tokens`, in equal parts, drawn by the seed."""
    result: list[Sequence[int]] = []
    for item in documents:
        left = POOL * tokens / len(documents)
        for document in random.Random(seed).sample(item, len(item)):  # noqa: S311  # no secret
            if left > 0 and document:
                result.append(document)
                left -= len(document)
    return result


@torch.inference_mode()
def embedded(
    model: PreTrainedModel, documents: Sequence[Sequence[int]], context: int, title: str, progress: Progress
) -> Tensor:
    """[n, H] float32: the mean of the last hidden states over each document's first `context` tokens.

    Documents without a token are left out.

    Raises:
        MoergeError: no document has a token.
    """
    numbered = [(number, document[:context]) for number, document in enumerate(documents) if document]
    if not numbered:
        raise MoergeError("no document has a token", where="`text`", todo="give more text")
    means: dict[int, Tensor] = {}
    with progress.track(title, sum(len(ids) for _, ids in numbered), "tokens") as tracker:
        for batch in bucket(numbered, lambda item: len(item[1]), _BATCH_TOKENS):
            ids = pad([ids for _, ids in batch]).to(model.device)
            hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state.float().cpu()
            for (number, document), rows in zip(batch, hidden, strict=True):
                means[number] = rows[: len(document)].mean(dim=0)
            tracker.advance(sum(len(document) for _, document in batch))
    return torch.stack([means[number] for number, _ in numbered])


def k_means(vectors: Tensor, count: int, seed: int) -> Clusters:
    """Clusters of vectors [n, H] by Lloyd's iteration, from vectors drawn as in k-means++.

    An empty cluster moves to the vector that is farthest from its centroid. Equal arguments give equal clusters.

    Raises:
        MoergeError: there are fewer vectors than clusters.
    """
    if len(vectors) < count:
        problem = f"expected at least as many documents as clusters, {count}, found {len(vectors)}"
        raise MoergeError(problem, where="`clusters`", todo="give more text, or a smaller number")
    points, generator = vectors.double(), torch.Generator().manual_seed(seed)
    chosen = [int(torch.randint(len(points), (1,), generator=generator))]
    while len(chosen) < count:
        squared = torch.cdist(points, points[chosen]).amin(dim=1) ** 2
        squared = squared if squared.sum() > 0 else torch.ones_like(squared)
        chosen.append(int(torch.multinomial(squared, 1, generator=generator)))
    centroids, before = points[chosen], torch.empty(0)
    for _ in range(_ITERATIONS):
        distances, places = torch.cdist(points, centroids).min(dim=1)
        if torch.equal(places, before):
            break
        before = places
        sizes = torch.bincount(places, minlength=count)
        sums = torch.zeros_like(centroids).index_add(0, places, points)
        centroids = sums / sizes.clamp_min(1)[:, None]
        farthest = distances.argsort(descending=True)
        for number, empty in enumerate((sizes == 0).nonzero()[:, 0].tolist()):
            centroids[empty] = points[farthest[number]]
    return Clusters(centroids.float())


def pretraining_domains(
    documents: Sequence[Sequence[int]], vectors: Tensor, count: int, context: int, seed: int
) -> Domains:
    """The clusters of documents, and each cluster's text as rows.

    A cluster with less text than one row is dissolved, so there may be fewer than `count`.

    Raises:
        MoergeError: there is too little text.
    """
    clusters = k_means(vectors, count, seed)
    while len(clusters.centroids):
        places = clusters.nearest(vectors).tolist()
        texts: list[list[Sequence[int]]] = [[] for _ in clusters.centroids]
        for document, place in zip(documents, places, strict=True):
            texts[place].append(document)
        rows = [joined(text, None, context) for text in texts]
        kept = [number for number, row in enumerate(rows) if len(row)]
        if len(kept) == len(rows):
            return Domains(clusters, rows)
        clusters = Clusters(clusters.centroids[kept])
    problem = f"no cluster of documents has {context} tokens"
    raise MoergeError(problem, where="`text`", todo="give more text, or a smaller `context`")


def sampled_weights(domains: int, support: int, generator: Generator) -> Tensor:
    """[domains] float32: a draw of the meta-distribution.

    `support` domains get uniform weights in [0, 1), which are normalised; all others 0 (SoE section 2.4).
    """
    weights = torch.zeros(domains)
    chosen = torch.randperm(domains, generator=generator)[:support]
    weights[chosen] = torch.rand(len(chosen), generator=generator).clamp_min(1e-6)
    return weights / weights.sum()


def mixture(rows: Sequence[Tensor], weights: Tensor, size: int, generator: Generator) -> Tensor:
    """[size, context] int64: rows, each of a domain drawn by the weights (SoE algorithm 1)."""
    sources = torch.multinomial(weights, size, replacement=True, generator=generator).tolist()
    drawn = [rows[source][int(torch.randint(len(rows[source]), (1,), generator=generator))] for source in sources]
    return torch.stack(drawn)
