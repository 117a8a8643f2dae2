"""A router contribution with noise: the public whitening, and the step from exact sums to the file that leaves.

Between two sets of documents of which one has a document more, exact sums differ by at most the limits of `whitening`.
The noise hides that much. All that follows reads only the noisy sums, so it costs nothing: means and covariance are
drawn towards the public text's, the more the larger the noise, and become gram and cross of an ordinary contribution.
"""

import math
from collections.abc import Iterator
from functools import lru_cache, partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from moerge.documents.pool import PublicDocuments
from moerge.documents.shards import cut
from moerge.files import atomic_file
from moerge.models.batches import batches
from moerge.models.bounds import feature_bounds
from moerge.models.dense_files import Dense
from moerge.models.families.family import EMBEDDING
from moerge.models.writer import TensorPlan, write_safetensors
from moerge.statistics.accumulate import Sum, inverse
from moerge.statistics.decoder import Decoder, LayerFiles
from moerge.statistics.integers import pack, square_of, to_integers
from moerge.statistics.noise import SIGMA, Generator, discrete_gaussian
from moerge.statistics.passes import RouterPass
from moerge.statistics.whitening import Limits, Whitening, Whitenings, name_of
from moerge.threads import one_thread
from moerge_proto.statistics_file import Int64, Manifest, StatisticsFile, StatisticsSettings, Sums, write

MOST_SPREAD = 18.0
"""Of useful grams. In a trial on SmolLM2's first layers, both sums routed equally well with noise of 16 to 20."""


class _Features(Sum):
    """The features of public documents, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.documents: list[Tensor] = []

    def add(self, x: Tensor) -> None:
        self.documents.append(x.float().cpu())


@torch.inference_mode()
def write_whitenings(
    work: RouterPass, settings: StatisticsSettings, path: Path, public: PublicDocuments | None = None
) -> Path:
    """Writes the whitening of each layer, from public text behind body and MLPs of the pass; one layer is in memory.

    Args:
        public: by default the pool.

    Raises:
        ContributionError: the settings name other public texts, or features aren't finite.
    """
    public = public or PublicDocuments()
    public.require(settings.privacy)
    alone = settings.model_copy(update={"privacy": None})
    texts = public.encoded(work.expert.tokenizer)
    rows = [row for text in texts for row in cut(text, alone, alone.tokens_per_document)]
    weights, dtype, device = work.weights(), getattr(torch, work.precision), torch.device(work.device)
    every = list(batches(rows, 1, chunk=work.expert.family.chunk(work.expert.config)))
    files, decoder = LayerFiles(weights, dtype, device), Decoder(weights, dtype, device)
    embedding = weights.tensor(EMBEDDING)
    states = [decoder.embedded(batch, embedding) for batch in every]
    inputs, hidden = work.inputs(), int(weights.config.hidden_size)

    @lru_cache(maxsize=1)
    def whitening(layer: int) -> Whitening:
        [item] = inputs[layer]
        features = _Features()
        with one_thread(), torch.inference_mode():
            decoder.hold(layer, files.layer(layer))
            for place, batch in enumerate(every):
                states[place] = decoder.through(layer, batch, states[place], inputs[layer], [features])
            decoder.release(layer)
            gains = None if item.gains is None else inverse(item.gains).float()
            return Whitening.of([x if gains is None else x * gains for x in features.documents])

    shapes = {"mean": (hidden,), "factor": (hidden, hidden), "clips": (3,)}

    def tensor(layer: int, name: str) -> Tensor:
        result: Tensor = getattr(whitening(layer), name)
        return result

    plans = [
        TensorPlan(name_of(layer, name), torch.float32, shape, partial(tensor, layer, name))
        for layer in range(len(inputs))
        for name, shape in shapes.items()
    ]
    with atomic_file(path, private=True) as out:
        write_safetensors(out, plans)
    return path


class Moments(NamedTuple):
    """Of a layer's noisy sums: the mean [H] of whitened features and their covariance [H, H], float64."""

    mean: Tensor
    covariance: Tensor


def release(
    exact: Path, path: Path, body: Dense, whitenings: Whitenings, generator: Generator | None = None
) -> Manifest:
    """Writes the contribution with noise, of sums on the noise's grid, and returns its manifest.

    Each document counts as `tokens_per_document` tokens, because the number of its own would tell of it.
    Every call draws new noise, and so costs the whole budget of all documents again.
    """
    generator = generator or Generator.secret()
    with StatisticsFile(exact) as file, atomic_file(path, private=True) as out:
        tokens = file.manifest.documents * (file.manifest.settings.tokens_per_document or 1)
        manifest = file.manifest.model_copy(update={"tokens": tokens})
        write(out, manifest, _released(file, manifest, feature_bounds(body), whitenings, generator))
        return manifest


def _released(
    file: StatisticsFile, manifest: Manifest, bounds: list[float], whitenings: Whitenings, generator: Generator
) -> Iterator[Int64]:
    limits = whitenings.limits
    for layer, bound in enumerate(bounds):
        gram, cross = file.gram(layer), file.cross(layer)
        cross += discrete_gaussian(len(cross), generator)
        if limits.gram:
            gram += discrete_gaussian(len(gram), generator)
        whitening, exponent = whitenings.layer(layer), manifest.exponents[layer]
        moments = moments_of(gram, cross, manifest.documents, whitening, limits)
        second, mean = features_of(moments, whitening, bound)
        yield to_integers(pack((second * manifest.tokens).numpy()), exponent)
        yield to_integers((mean * manifest.tokens).numpy(), exponent)


def moments_of(gram: Int64, cross: Int64, documents: int, whitening: Whitening, limits: Limits) -> Moments:
    """Moments drawn towards 0 and the unit matrix, the public text's, as much as the noise asks for.

    The mean shrinks by the share of noise in its square (James and Stein, 1961). The covariance becomes
    (S + v I) / (1 + v), with S its positive semidefinite part, and v the spectral norm of the noise.
    """
    size, step = len(cross), whitening.cross / limits.cross / documents
    mean = torch.from_numpy(cross).double() * step
    found, noise = float(mean.square().sum()), size * (SIGMA * step) ** 2
    mean = mean * max(0.0, 1 - noise / max(found, noise))
    mean = mean * min(1.0, whitening.cross / max(float(mean.norm()), 1e-300))
    unit = torch.eye(size, dtype=torch.float64)
    if not limits.gram:
        return Moments(mean, unit)
    step = whitening.gram / limits.gram / documents
    square = square_of(gram, 0) * (step / math.sqrt(2))
    square.diagonal().mul_(math.sqrt(2))
    values, vectors = torch.linalg.eigh(square - torch.outer(mean, mean))
    covariance = (vectors * values.clamp_min(0)) @ vectors.T
    spread = spread_of(documents, whitening, limits)
    return Moments(mean, (covariance + spread * unit) / (1 + spread))


def spread_of(documents: int, whitening: Whitening, limits: Limits) -> float:
    """The spectral norm of a covariance's noise over so many documents, in units of the public covariance."""
    return math.sqrt(2 * len(whitening.mean)) * SIGMA * whitening.gram / limits.gram / documents


def suited(documents: int, whitenings: Whitenings) -> Sums:
    """The better sums for so many documents, by the noise alone, and so by public text alone."""
    limits = Limits.of(whitenings.privacy.model_copy(update={"sums": "grams"}), whitenings.layers)
    spreads = [spread_of(documents, whitenings.layer(layer), limits) for layer in range(whitenings.layers)]
    return "grams" if median(spreads) < MOST_SPREAD else "means"


def features_of(moments: Moments, whitening: Whitening, bound: float) -> tuple[Tensor, Tensor]:
    """Second moment [H, H] and mean [H] of features, float64, from those of whitened ones; the trace is in `bound`."""
    factor = whitening.factor.double()
    mean = whitening.mean.double() + factor @ moments.mean
    second = factor @ moments.covariance @ factor.T + torch.outer(mean, mean)
    scale = min(1.0, bound / float(second.trace()))
    return second * scale, mean * math.sqrt(scale)
