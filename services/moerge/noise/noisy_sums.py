"""Router contributions with noise: the public whitening, and the step from exact sums to those that count.

Between two sets of documents of which one has a document more, exact sums differ by at most the limits of `whitening`.
The noise hides that much. All that follows reads only the noisy sums, so it costs nothing: means and covariance are
drawn towards the public text's, the more the larger the noise, and become gram and cross of an ordinary contribution.
"""

import math
from collections.abc import Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from moerge.documents.pool import encoded_pool, require_public
from moerge.documents.shards import cut
from moerge.files import atomic_file
from moerge.memory.machine import free_for
from moerge.memory.needs import whitening as whitening_need
from moerge.memory.room import require_room
from moerge.memory.shapes import Shape
from moerge.models.batches import batches
from moerge.models.bounds import feature_bounds
from moerge.models.dense_files import Dense
from moerge.models.families.family import EMBEDDING
from moerge.models.writer import TensorPlan, write_safetensors
from moerge.noise.gaussian import SIGMA, Generator, discrete_gaussian
from moerge.noise.whitening import Limits, Whitening, Whitenings, counted, name_of
from moerge.statistics.accumulate import Sum, inverse
from moerge.statistics.decoder import Decoder, LayerFiles
from moerge.statistics.hidden_states import HiddenStates
from moerge.statistics.integers import pack, square_of, to_integers
from moerge.statistics.passes import RouterPass
from moerge.statistics.transfers import transfers_of
from moerge.threads import one_thread
from moerge_proto.statistics_file import Int64, Manifest, StatisticsFile, StatisticsSettings, write


class _Features(Sum):
    """The features of public documents, one after the other, divided by the gains."""

    def __init__(self, gains: Tensor | None) -> None:
        super().__init__()
        self._factors = 1.0 if gains is None else inverse(gains).float()
        self.documents: list[Tensor] = []

    def add(self, x: Tensor) -> None:
        self.documents.append(x.float().cpu() * self._factors)


@torch.inference_mode()
def write_whitenings(work: RouterPass, settings: StatisticsSettings, path: Path) -> Path:
    """Writes the whitening of each layer, from the pool behind body and MLPs of the pass; one layer is in memory.

    Raises:
        ContributionError: the settings name another pool, or features aren't finite.
        MoergeError: not enough memory for the pool.
    """
    require_public(settings.privacy)
    alone = settings.model_copy(update={"privacy": None})
    rows = [row for text in encoded_pool(work.expert.tokenizer) for row in cut(text, alone, alone.tokens_per_document)]
    weights, dtype, device = work.weights(), getattr(torch, work.precision), torch.device(work.device)
    need = whitening_need(Shape.of(weights.config, dtype), sum(map(len, rows)), work.device)
    require_room(need, free_for(work.device), ["a machine with more memory"])
    files, decoder = LayerFiles(weights, dtype, device), Decoder(weights, dtype, device)
    every = [decoder.ready(batch) for batch in batches(rows, 1, chunk=work.expert.family.chunk(work.expert.config))]
    states = HiddenStates(device, transfers_of(device))
    decoder.embed(every, weights.tensor(EMBEDDING), states)
    inputs, hidden = work.inputs(), int(weights.config.hidden_size)

    @lru_cache(maxsize=1)
    def whitening(layer: int) -> Whitening:
        [item] = inputs[layer]
        features = _Features(item.gains)
        with one_thread(), torch.inference_mode():
            decoder.hold(layer, files.layer(layer))
            for number, batch in enumerate(every):
                behind = decoder.through(layer, batch, states[number], inputs[layer], [features])
                if behind is not None:
                    states[number] = behind
            decoder.release(layer)
            return Whitening.of(features.documents)

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
    """Mean [H] of a layer's whitened features, and covariance [H, H] around it, of noisy sums; both are float64."""

    mean: Tensor
    covariance: Tensor


def release(
    exact: Path, path: Path, body: Dense, whitenings: Whitenings, generator: Generator | None = None
) -> Manifest:
    """Writes the contribution with noise, of sums on the noise's grid, and returns its manifest.

    Each document counts as `tokens_per_document` tokens, because the number of its own would tell of it.
    Every call draws new noise, and so costs the whole budget of all documents again.
    """
    with StatisticsFile(exact) as file, atomic_file(path, private=True) as out:
        manifest = counted(file.manifest, whitenings.limits)
        write(out, manifest, _released(file, feature_bounds(body), whitenings, generator or Generator.secret()))
        return manifest


def _released(
    file: StatisticsFile, bounds: list[float], whitenings: Whitenings, generator: Generator
) -> Iterator[Int64]:
    for layer, bound in enumerate(bounds):
        gram, cross = file.gram(layer), file.cross(layer)
        cross += discrete_gaussian(len(cross), generator)
        gram += discrete_gaussian(len(gram), generator)
        yield from _features(gram, cross, file.manifest, layer, bound, whitenings)


def _features(
    gram: Int64, cross: Int64, manifest: Manifest, layer: int, bound: float, whitenings: Whitenings
) -> tuple[Int64, Int64]:
    """Noisy sums of a layer, in whitened coordinates -> gram and cross of features, as a contribution has them."""
    whitening, exponent = whitenings.layer(layer), manifest.exponents[layer]
    moments = moments_of(gram, cross, manifest.documents, whitening, whitenings.limits)
    second, mean = features_of(moments, whitening, bound)
    tokens = manifest.documents * (manifest.settings.tokens_per_document or 1)
    gram = to_integers(pack((second * tokens).numpy()), exponent)
    return gram, to_integers((mean * tokens).numpy(), exponent)


def moments_of(gram: Int64, cross: Int64, documents: int, whitening: Whitening, limits: Limits) -> Moments:
    """Moments drawn towards 0 and the unit matrix, the public text's, as much as the noise asks for.

    The mean shrinks by the share of noise in its square (James and Stein, 1961). The covariance becomes
    (S + v I) / (1 + v), with S its positive semidefinite part, and v the spectral norm of the noise.
    """
    mean, unit = _mean(cross, documents, whitening, limits), torch.eye(len(cross), dtype=torch.float64)
    square = square_of(gram, 0) * (whitening.gram / limits.gram / documents / math.sqrt(2))
    square.diagonal().mul_(math.sqrt(2))
    values, vectors = torch.linalg.eigh(square - mean.outer(mean))
    covariance = (vectors * values.clamp_min(0)) @ vectors.T
    spread = SIGMA * math.sqrt(2 * len(mean)) * whitening.gram / limits.gram / documents
    return Moments(mean, (covariance + spread * unit) / (1 + spread))


def _mean(cross: Int64, documents: int, whitening: Whitening, limits: Limits) -> Tensor:
    step = whitening.cross / limits.cross / documents
    mean = torch.from_numpy(cross).double() * step
    found, noise = float(mean.square().sum()), len(cross) * (SIGMA * step) ** 2
    mean = mean * max(0.0, 1 - noise / max(found, noise))
    return mean * min(1.0, whitening.cross / max(float(mean.norm()), 1e-300))


def features_of(moments: Moments, whitening: Whitening, bound: float) -> tuple[Tensor, Tensor]:
    """Second moment [H, H] and mean [H] of features, float64, from those of whitened ones; its trace is in `bound`."""
    factor = whitening.factor.double()
    mean = whitening.mean.double() + factor @ moments.mean
    second = factor @ moments.covariance @ factor.T + mean.outer(mean)
    scale = min(1.0, bound / float(second.trace()))
    return second * scale, mean * math.sqrt(scale)
