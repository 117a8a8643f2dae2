"""A layer's features whitened with public text, and bounded sums of them: what one document can change is known."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from moerge.errors import ContributionError
from moerge.memory.needs import SUM_ROWS, WHITENED_ROWS, sum_blocks
from moerge.noise.accountant import rho_of
from moerge.noise.gaussian import SIGMA
from moerge.statistics.accumulate import Rounded, Sum, inverse
from moerge.statistics.integers import pack
from moerge_proto.statistics_file import Manifest, Privacy

_LEAST_VARIANCE = 0.02  # in units of the mean one
_TOKENS, _DOCUMENTS = 0.95, 0.9  # quantiles of public norms
_MOST_SUM = 2.0**61  # of documents; noise is below 2**46
_TENSORS = "mean", "factor", "clips"
_MARGIN = 1 - 2.0**-20  # for the rounding of norms
_TODO = "check the body"


class Limits(NamedTuple):
    """The most by which one document changes a layer's integers, as Euclidean norms of triangle and sum."""

    gram: float
    cross: float

    @classmethod
    def of(cls, privacy: Privacy, layers: int) -> Self:
        """All layers have equal shares of the budget, in each the gram half of it."""
        each = SIGMA * math.sqrt(2 * rho_of(privacy.epsilon, privacy.delta) / layers)
        return cls(each / math.sqrt(2), each / math.sqrt(2))

    def require_room(self, documents: int) -> None:
        """Requires that noisy sums of so many documents stay below 2**62.

        Raises:
            ContributionError: they are too many for the integers.
        """
        if documents > (most := int(_MOST_SUM / max(self))):
            what = f"{documents:,} documents; with this noise at most {most:,} fit into the integers"
            raise ContributionError(what, where="manifest.documents", todo="contribute fewer documents")


def counted(manifest: Manifest, limits: Limits) -> Manifest:
    """The manifest of sums with noise: each document counts as `tokens_per_document` tokens.

    Raises:
        ContributionError: they are too many for the integers.
    """
    limits.require_room(manifest.documents)
    return manifest.model_copy(update={"tokens": manifest.documents * (manifest.settings.tokens_per_document or 1)})


@dataclass(frozen=True)
class Whitening:
    """Mean, whitening and clips of a layer, from public text.

    Attributes:
        mean: [H] float32, of features divided by their gains.
        factor: [H, H] float32, lower triangular; factor factor^T is their covariance, with a ridge.
        radius: the largest norm of a whitened feature; larger ones are scaled down, as the next two.
        gram: of a document's mean outer product (Frobenius).
        cross: of a document's mean.
    """

    mean: Tensor
    factor: Tensor
    radius: float
    gram: float
    cross: float

    @classmethod
    def of(cls, documents: Sequence[Tensor]) -> Self:
        """From features [tokens, H] float32 of public documents.

        Raises:
            ContributionError: they aren't finite, or are all alike: a clip of 0 would fail only for some documents.
        """
        joined = torch.cat(list(documents))
        parts = joined.split(WHITENED_ROWS)
        mean = sum((part.double().sum(dim=0) for part in parts), torch.zeros(())) / len(joined)
        covariance = sum((_square(part - mean) for part in parts), torch.zeros(())) / len(joined)
        covariance.diagonal().add_(_LEAST_VARIANCE * covariance.diagonal().mean() + 1e-12)
        factor, failed = torch.linalg.cholesky_ex(covariance)
        if int(failed) or not bool(factor.isfinite().all()):
            raise ContributionError("the features of the public text aren't finite", todo=_TODO)
        result = cls(mean.float(), factor.float(), math.inf, math.inf, math.inf)
        norms = torch.cat([result.whitened(item).norm(dim=1) for item in documents])
        result = cls(result.mean, result.factor, float(norms.quantile(_TOKENS)), math.inf, math.inf)
        sizes = torch.stack([result.sizes(item) for item in documents])
        limits = sizes.quantile(_DOCUMENTS, dim=0).tolist()
        result = cls(result.mean, result.factor, result.radius, *limits)
        if not bool(((result.clips > 0) & result.clips.isfinite()).all()):
            raise ContributionError("the features of the public text are all alike, or too large", todo=_TODO)
        return result

    @property
    def clips(self) -> Tensor:
        return torch.tensor([self.radius, self.gram, self.cross])

    def on(self, device: torch.device) -> "Whitening":
        return replace(self, mean=self.mean.to(device), factor=self.factor.to(device))

    def whitened(self, features: Tensor) -> Tensor:
        """[n, H] -> [n, H], within the radius."""
        result: Tensor = torch.linalg.solve_triangular(self.factor, (features - self.mean).T, upper=False).T
        result *= (self.radius / result.norm(dim=1, keepdim=True)).clamp_max(1)
        return result

    def sizes(self, features: Tensor) -> Tensor:
        """Norms [2] of a document's mean outer product and mean, from its features [n, H]."""
        whitened = self.whitened(features)
        return torch.stack([_norms(_products(whitened[None]))[0], whitened.double().mean(dim=0).norm()])


@dataclass(frozen=True)
class Whitenings:
    """The file of all layers' whitenings, for sums with noise."""

    path: Path
    privacy: Privacy
    layers: int

    @property
    def limits(self) -> Limits:
        return Limits.of(self.privacy, self.layers)

    def layer(self, layer: int) -> Whitening:
        with safe_open(self.path, framework="pt") as file:
            mean, factor, clips = (file.get_tensor(name_of(layer, name)).clone() for name in _TENSORS)
        return Whitening(mean, factor, *clips.tolist())

    def sum(self, layer: int, gains: Tensor | None) -> "BoundedSum":
        return BoundedSum(self.layer(layer), self.limits, gains)


def name_of(layer: int, attribute: str) -> str:
    """The name of a whitening's tensor in the file."""
    return f"{layer}.{attribute}"


class BoundedSum(Sum):
    """Sums of documents' moments, rounded towards 0 and added as integers.

    Entries above the diagonal are times the root of 2, so that the norm of the triangle is the Frobenius norm. A
    document whose features aren't finite counts as nothing. So any document, under any body, keeps within the limits.
    """

    def __init__(self, whitening: Whitening, limits: Limits, gains: Tensor | None) -> None:
        super().__init__()
        self._whitening, self._limits, size = whitening, limits, len(whitening.mean)
        self._factors = torch.ones(size) if gains is None else inverse(gains).float()
        self._square = [torch.zeros(shape, dtype=torch.int64) for shape in sum_blocks(size)]
        self._total = torch.zeros(size, dtype=torch.int64)

    def add(self, x: Tensor) -> None:
        """Adds the features x of one document [n, H], or of several of equal length [documents, n, H]."""
        if x.device != self._total.device:
            self._whitening, self._total = self._whitening.on(x.device), self._total.to(x.device)
            self._factors, self._square = self._factors.to(x.device), [block.to(x.device) for block in self._square]
        features = x.float() * self._factors
        documents = self._whitening.whitened(features.flatten(0, -2)).view(-1, *features.shape[-2:])
        products = _products(documents)
        crosses = documents.double().mean(dim=1)
        sizes, squares = crosses.norm(dim=1), _norms(products)
        finite = squares.isfinite() & sizes.isfinite()
        scale = _MARGIN * self._limits.cross / sizes[finite].clamp_min(self._whitening.cross)
        self._total += _truncated(crosses[finite] * scale[:, None])
        scale = _MARGIN * self._limits.gram / squares[finite].clamp_min(self._whitening.gram)
        for block, product in zip(self._square, products, strict=True):
            block += _truncated(product[finite].double() * scale[:, None, None])

    def rounded(self, exponent: int, gains: Tensor | None) -> Rounded:
        """The integers, on the grid of the noise; the arguments don't matter."""
        gram = np.concatenate([pack(block.cpu().numpy()) for block in self._square])
        return Rounded(torch.from_numpy(gram), self._total, torch.tensor(data=True))


def _square(rows: Tensor) -> Tensor:
    return rows.T @ rows


def _products(documents: Tensor) -> list[Tensor]:
    """The triangles of the mean outer products of features [documents, n, H], in blocks of rows, float32.

    Entries above the diagonal are times the root of 2; what is below it is 0.
    """
    scaled, result = documents * math.sqrt(math.sqrt(2) / documents.shape[1]), list[Tensor]()
    for start in range(0, documents.shape[2], SUM_ROWS):
        block = scaled[:, :, start : start + SUM_ROWS].mT @ scaled[:, :, start:]
        block.triu_()  # a computed product may be asymmetric, and only the triangle leaves
        block.diagonal(dim1=1, dim2=2).mul_(math.sqrt(0.5))
        result.append(block)
    return result


def _norms(products: Sequence[Tensor]) -> Tensor:
    """The norm of each document's triangle, float64: the Frobenius norm of its mean outer product."""
    parts = [torch.linalg.vector_norm(block, dim=(1, 2), dtype=torch.float64) for block in products]
    result: Tensor = torch.stack(parts).norm(dim=0)
    return result


def _truncated(documents: Tensor) -> Tensor:
    """The sum of the documents' values, each rounded towards 0."""
    return documents.trunc().to(torch.int64).sum(dim=0)
