"""Expert routing: a linear router on a mean embedding chooses a single expert (BTS section 3.3)."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from moerge.bodies.methods.average import average
from moerge.models.families.family import EMBEDDING
from moerge.models.reader import Checkpoint
from moerge.routers.ridge import Ridge
from moerge.scoring.perplexity import Rows
from moerge.threads import one_thread
from moerge_lab.recipes.base import SEED, Fleet, Model, Options, Recipe, number, whole
from moerge_lab.recipes.likelihoods import Dense, experts, likelihoods, recent, with_seed
from moerge_lab.recipes.tuning import CHOOSE, with_window

SHORTEST, LONGEST = 32, 256
"""Least and most tokens of a document for fitting a router; a shorter document counts whole."""
_BATCH = 64
_LEARNING_RATE = 5e-4


def mean_embeddings(table: Tensor, rows: Sequence[list[int]]) -> Tensor:
    """[N, H] float32: the mean of each row's embeddings, from the table [V, H] and rows of at least one token id."""
    lengths = torch.tensor([0, *map(len, rows[:-1])])
    ids = torch.tensor([id_ for row in rows for id_ in row])
    return torch.nn.functional.embedding_bag(ids, table, lengths.cumsum(dim=0), mode="mean")


def closed_form(features: Tensor, targets: Tensor, domains: int, ridge_lambda: float) -> Tensor:
    """[H, D] float32: (X^T X + lambda m I)^-1 X^T Y, where m is the mean diagonal of X^T X, and Y one-hot.

    Args:
        features: X, [N, H].
        targets: [N], the number of the expert with the smallest loss.
        domains: D.
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
        targets: [N], the number of the expert with the smallest loss.
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


class PrefixRouted(Model):
    """Each token is predicted by the router's expert for the mean embedding of the `window` tokens before it; 0: all.

    A chosen expert must have read all earlier text, so each has its own cache of keys and values. The active parameters
    assume that an expert reads missed text only when it is chosen; they cover the rows so far.

    Args:
        table: [V, H], embeddings.
        router: [H, D].
    """

    def __init__(self, models: Sequence[Dense], table: Tensor, router: Tensor, window: int = 0) -> None:
        self.table = table
        self._models, self._window = models, window
        self._preference = (table.double() @ router.double()).T  # [D, V]: of a mean, the mean of its tokens'
        head = models[0].model.get_output_embeddings().weight.numel()
        self._costs = (models[0].active_parameters - head, float(head + router.numel()))  # of reading, of predicting
        self.active_parameters = sum(self._costs)
        self._read, self._predicted = 0, 0

    def losses(self, rows: Rows) -> Tensor:
        """[B, T - 1] float64."""
        chosen = recent(self._preference[:, rows.ids], self._window)[..., :-1].argmax(dim=0)  # [B, T - 1]
        self._count(chosen, rows.lengths)
        return torch.stack([model.losses(rows) for model in self._models]).gather(0, chosen[None])[0]

    def _count(self, chosen: Tensor, lengths: Sequence[int]) -> None:
        """Count the tokens that each expert reads, up to its last choice."""
        for row, length in zip(chosen, lengths, strict=True):
            last = {expert: place for place, expert in enumerate(row[: length - 1].tolist(), start=1)}
            self._read += sum(last.values())
            self._predicted += length - 1
        reading, predicting = self._costs
        self.active_parameters = reading * self._read / self._predicted + predicting


def _prepared(fleet: Fleet, options: Options) -> tuple[list[Dense], Tensor, list[list[int]], Tensor]:
    models = experts(with_seed(fleet, options))
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


def stretches(texts: Sequence[list[int]], targets: Tensor, window: int) -> tuple[list[list[int]], Tensor]:
    """The examples of a router: texts, or with a window their stretches of that length, which overlap by half."""
    if not window:
        return list(texts), targets
    cut = [
        (text[start : start + window], target)
        for text, target in zip(texts, targets.tolist(), strict=True)
        for start in range(0, max(1, len(text) - window + 1), max(1, window // 2))
    ]
    return [stretch for stretch, _ in cut], torch.tensor([target for _, target in cut])


Fit = Callable[[Callable[[Tensor], Tensor], Tensor, tuple[int, int]], Tensor]
"""Draws of features of texts, the texts' targets [N], and H and D -> router [H, D]."""


def _routed(fleet: Fleet, options: Options, fit: Fit) -> PrefixRouted:
    models, table, texts, targets = _prepared(fleet, options)

    def build(window: int) -> PrefixRouted:
        examples, wanted = stretches(texts, targets, window)
        router = fit(_prefixes(table, examples, fleet.seed), wanted, (table.shape[1], len(models)))
        return PrefixRouted(models, table, router, window)

    return with_window(fleet, options, build)


def _closed_form(fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
    def fit(draw: Callable[[Tensor], Tensor], targets: Tensor, shape: tuple[int, int]) -> Tensor:
        return closed_form(draw(torch.arange(len(targets))), targets, shape[1], number(options, "lambda"))

    yield "expert-routing", _routed(fleet, options, fit)


def _trained(fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
    fit = partial(trained, steps=whole(options, "steps", 1), seed=fleet.seed)
    yield "expert-routing-trained", _routed(fleet, options, fit)


_DIFFERENCE = "chooses anew for every token, where BTS does once, by the prompt, so every expert keeps a cache"
_OPTIONS: Options = {"window": CHOOSE, SEED: 0}
RECIPES = (
    Recipe(
        "expert-routing",
        f"BTS section 3.3, the router solved by ridge regression instead of trained; {_DIFFERENCE}",
        _closed_form,
        options={"lambda": 0.01, **_OPTIONS},
        drawn=True,
    ),
    Recipe(
        "expert-routing-trained",
        f"BTS section 3.3, the router trained as there but in batches of 64 documents; {_DIFFERENCE}",
        _trained,
        options={"steps": 1000, **_OPTIONS},
        drawn=True,
    ),
)
