"""Expert routing: a linear router on the input's mean embedding sends all of it to one expert (BTS section 3.3)."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedModel

from moerge.models.families import EMBEDDING
from moerge.models.reader import Checkpoint
from moerge.recipes.base import Fleet, Model, Options, Recipe, whole
from moerge.recipes.likelihoods import documents, experts, in_groups, likelihoods
from moerge.recipes.models import active_parameters
from moerge.routers.ridge import Ridge
from moerge.scoring.perplexity import Rows, logits
from moerge.threads import one_thread
from moerge.trunk.average import average

SHORTEST, LONGEST = 32, 256
"""Tokens of a document that a router is fitted to, at least and at most; a shorter document counts as a whole."""
_BATCH = 64
_LEARNING_RATE = 5e-4


def mean_embeddings(table: Tensor, rows: Sequence[list[int]]) -> Tensor:
    """[N, H] float32: the mean of each row's embeddings.

    Args:
        table: [V, H].
        rows: token ids, at least one in each.
    """
    lengths = torch.tensor([0, *map(len, rows[:-1])])
    ids = torch.tensor([id_ for row in rows for id_ in row])
    return torch.nn.functional.embedding_bag(ids, table, lengths.cumsum(dim=0), mode="mean")


def closed_form(features: Tensor, targets: Tensor, domains: int, ridge_lambda: float) -> Tensor:
    """[H, D] float32: (X^T X + lambda m I)^-1 X^T Y, where m is the mean diagonal of X^T X, and Y one-hot.

    Args:
        features: X, [N, H].
        targets: [N], which expert has the smallest loss.
        domains: D.
        ridge_lambda: lambda, in units of the mean diagonal, for embeddings have any scale.
    """
    wide = features.double()
    gram = wide.T @ wide
    cross = wide.T @ torch.nn.functional.one_hot(targets, domains).double()
    with one_thread():
        return Ridge.of(gram, ridge_lambda * float(gram.diagonal().mean())).solve(cross).float()


def trained(draw: Callable[[Tensor], Tensor], targets: Tensor, shape: tuple[int, int], steps: int, seed: int) -> Tensor:
    """[H, D] float32: a router trained with cross-entropy by Adam at a constant learning rate of 5e-4, from zero.

    Args:
        draw: numbers of texts [n] -> their features [n, H], of newly drawn lengths.
        targets: [N], which expert has the smallest loss.
        shape: H, D.
        steps: of 64 documents each.
        seed: of the batches.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.inference_mode(False), torch.enable_grad():
        router = torch.zeros(shape, requires_grad=True)
        optimizer = torch.optim.Adam([router], lr=_LEARNING_RATE)
        for _ in range(steps):
            batch = torch.randint(len(targets), (_BATCH,), generator=generator)
            loss = torch.nn.functional.cross_entropy(draw(batch) @ router, targets[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return router.detach()


class SequenceRouted(Model):
    """Each row goes as a whole to the expert that the router prefers for the mean embedding of all its tokens.

    Args:
        models: the dense experts.
        table: [V, H], embeddings.
        router: [H, D].
    """

    def __init__(self, models: Sequence[PreTrainedModel], table: Tensor, router: Tensor) -> None:
        self.table = table
        self._models, self._router = models, router
        self.active_parameters = active_parameters(models[0]) + router.numel()

    @torch.inference_mode()
    def logits(self, rows: Rows) -> Tensor:
        """[B, T, V] float32."""
        chosen = (mean_embeddings(self.table, documents(rows)) @ self._router).argmax(dim=1)
        groups = (((chosen == slot).nonzero()[:, 0], self._models[slot]) for slot in chosen.unique().tolist())
        return in_groups(rows, ((those, partial(logits, model)) for those, model in groups))


def _prepared(fleet: Fleet) -> tuple[list[PreTrainedModel], Tensor, list[list[int]], Tensor]:
    """The experts, the embeddings, the domains' documents, and which expert has the smallest loss on each."""
    models = experts(fleet)
    folders = [domain.expert for domain in fleet.domains] if fleet.base is None else [fleet.base]
    table = average([Checkpoint(folder).tensor(EMBEDDING) for folder in folders], torch.float32)
    texts = [text for domain in fleet.domains for text in domain.statistics if len(text) > 1]
    return models, table, texts, likelihoods(models, texts).argmax(dim=1)


def _prefixes(table: Tensor, texts: Sequence[list[int]], seed: int) -> Callable[[Tensor], Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def draw(numbers: Tensor) -> Tensor:
        lengths = torch.randint(SHORTEST, LONGEST + 1, (len(numbers),), generator=generator).tolist()
        return mean_embeddings(table, [texts[n][:t] for n, t in zip(numbers.tolist(), lengths, strict=True)])

    return draw


def _closed_form(fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
    models, table, texts, targets = _prepared(fleet)
    features = _prefixes(table, texts, fleet.seed)(torch.arange(len(texts)))
    router = closed_form(features, targets, len(models), options["lambda"])
    yield "expert-routing", SequenceRouted(models, table, router)


def _trained(fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
    models, table, texts, targets = _prepared(fleet)
    draw = _prefixes(table, texts, fleet.seed)
    router = trained(draw, targets, (table.shape[1], len(models)), whole(options, "steps", 1), fleet.seed)
    yield "expert-routing-trained", SequenceRouted(models, table, router)


RECIPES = (
    Recipe(
        "expert-routing",
        "BTS section 3.3, the router solved by ridge regression instead of trained; without the seed model",
        _closed_form,
        options={"lambda": 0.01},
        drawn=True,
        reads_ahead=True,
    ),
    Recipe(
        "expert-routing-trained",
        "BTS section 3.3, the router trained as there but in batches of 64 documents; without the seed model",
        _trained,
        options={"steps": 1000},
        drawn=True,
        reads_ahead=True,
    ),
)
