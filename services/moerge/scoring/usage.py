"""The use of a version's experts by texts: shares of tokens and of router weight, with standard errors."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from moerge.models.batches import Batch, bucket, pad
from moerge.models.tokens import Tokens
from moerge.progress import Tracker
from moerge.scoring.perplexity import BATCH_TOKENS
from moerge.scoring.streamed import StreamedModel
from moerge_proto.usage import percent

_TOKENS, _NUMBERS = 2**20, 2**22
"""Tokens of a block of documents, and numbers of its counts, at least one document's."""


@dataclass(frozen=True)
class Estimate:
    """A share from 0 to 1, with its standard error over documents; None: of a single document."""

    share: float
    error: float | None

    @property
    def percent(self) -> str:
        """Both in percent, without the sign."""
        return percent(self.share, self.error)


@dataclass(frozen=True)
class LayerUsage:
    layer: int
    tokens: Estimate
    weight: Estimate


@dataclass(frozen=True)
class ExpertUsage:
    """The use of a domain's expert: means over the layers, and each layer, counted from 0.

    `tokens`: the share of the tokens with this expert as first choice. `weight`: the share of the routers' weights of
    the chosen experts, which sum to 1 for each token. With one expert per token both are the same.
    """

    domain: str
    tokens: Estimate
    weight: Estimate
    layers: list[LayerUsage]


@dataclass(frozen=True)
class Usage:
    """The use of a version's experts by `documents` with so many `tokens`. `version`: its name, if it is signed."""

    version: str | None
    documents: int
    tokens: int
    experts: list[ExpertUsage]


class Ratio:
    """The ratio r = sum(y) / sum(x) over n documents of x tokens, with its standard error.

    The error is sqrt(n / (n - 1) * sum((y - r x)^2)) / sum(x), that of the ratio estimator for documents that are drawn
    independently (Cochran, Sampling Techniques, 3rd edition, section 6.4). Only sums are kept, in float64.
    """

    def __init__(self) -> None:
        self.documents, self._x, self._xx = 0, 0.0, 0.0
        self._y, self._xy, self._yy = (torch.zeros((), dtype=torch.float64) for _ in range(3))

    def add(self, x: Tensor, y: Tensor) -> None:
        """Adds documents: x [n] and y [n, ..], float64."""
        self.documents += len(x)
        self._x += float(x.sum())
        self._xx += float(x.square().sum())
        self._y = self._y + y.sum(0)
        self._xy = self._xy + torch.tensordot(x, y, 1)
        self._yy = self._yy + y.square().sum(0)

    @property
    def value(self) -> Tensor:
        return self._y / self._x

    @property
    def error(self) -> Tensor | None:
        """None of fewer than two documents."""
        if self.documents < 2:
            return None
        squares = self._yy - 2 * self.value * self._xy + self.value.square() * self._xx
        return (squares.clamp(min=0) * self.documents / (self.documents - 1)).sqrt() / self._x


class _Block:
    """Counts of some documents, [L, n, D] float64: of first choices, and of weights that sum to 1 for each token."""

    def __init__(self, layers: int, documents: int, experts: int) -> None:
        self._shape = layers, documents, experts
        self._tokens = self._weight = torch.empty(0)

    def add(self, layer: int, documents: Tensor, weights: Tensor, chosen: Tensor) -> None:
        """Adds tokens [n] of numbered documents, with weights and experts [n, k]."""
        if not len(self._tokens):
            self._tokens, self._weight = weights.new_zeros(2, *self._shape, dtype=torch.float64)
        shares = weights.double()
        shares = shares / shares.sum(1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
        places = documents.to(chosen.device)[:, None] * self._shape[2] + chosen
        self._tokens[layer].view(-1).scatter_add_(0, places[:, 0], torch.ones_like(shares[:, 0]))
        self._weight[layer].view(-1).scatter_add_(0, places.flatten(), shares.flatten())

    def sums(self) -> tuple[Tensor, Tensor]:
        """[n, L + 1, D] each: of every layer, and their mean."""
        tokens, weight = (torch.cat([part, part.mean(0, keepdim=True)]) for part in (self._tokens, self._weight))
        return tokens.transpose(0, 1).cpu(), weight.transpose(0, 1).cpu()


def usage(
    model: StreamedModel,
    domains: Sequence[str],
    documents: Iterable[Tokens],
    context: int,
    tracker: Tracker,
    version: str | None = None,
) -> Usage:
    """The use of a version's experts, by all tokens of documents that count.

    A longer document is cut into pieces of `context` tokens, which the model reads alone. The tracker gets the number
    of tokens. Documents without a token that counts are left out; there is at least another one.
    """
    layers, experts = model.routed.shape
    tokens, weight, total = Ratio(), Ratio(), 0
    for block in _blocks((item for item in documents if item.count), _NUMBERS // (layers * experts)):
        counts = _Block(layers, len(block), experts)
        model.route(_batches(block, context), counts.add, tracker)
        x = torch.tensor([float(item.count) for item in block], dtype=torch.float64)
        for ratio, y in zip((tokens, weight), counts.sums(), strict=True):
            ratio.add(x, y)
        total += sum(item.count for item in block)
    first, given = _estimates(tokens), _estimates(weight)
    every = [
        ExpertUsage(
            domain,
            first[layers][slot],
            given[layers][slot],
            [LayerUsage(layer, first[layer][slot], given[layer][slot]) for layer in range(layers)],
        )
        for slot, domain in enumerate(domains)
    ]
    return Usage(version, tokens.documents, total, every)


def _estimates(ratio: Ratio) -> list[list[Estimate]]:
    shares, errors = ratio.value.tolist(), ratio.error
    wrong = errors.tolist() if errors is not None else [[None] * len(row) for row in shares]
    return [list(map(Estimate, *pair)) for pair in zip(shares, wrong, strict=True)]


def _blocks(documents: Iterable[Tokens], most: int) -> Iterator[list[Tokens]]:
    block, held = list[Tokens](), 0
    for document in documents:
        if block and (held + len(document) > _TOKENS or len(block) >= most):
            yield block
            block, held = [], 0
        block.append(document)
        held += len(document)
    if block:
        yield block


def _batches(block: Sequence[Tokens], context: int) -> Iterator[tuple[Tensor, Batch]]:
    """Micro-batches of pieces; each is named by the numbers of its counted tokens' documents, [n]."""
    pieces = [(number, piece) for number, item in enumerate(block) for piece in item.pieces(context) if piece.count]
    for rows in bucket(pieces, lambda item: len(item[1]), BATCH_TOKENS):
        lengths = torch.tensor([len(piece) for _, piece in rows])
        counted = pad([piece.mask for _, piece in rows], torch.bool)  # [B, T]
        numbers = torch.tensor([number for number, _ in rows])[:, None].expand(counted.shape)[counted]
        yield numbers, Batch(pad([piece.ids for _, piece in rows]), lengths, counted)
