"""A coordinator tests whether a document is in sums with noise: what it learns stays below the claimed epsilon."""

import math
from collections.abc import Callable
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
import torch

from moerge.merging.local_lineages import LocalBody, local_body
from moerge.models.bounds import feature_bounds
from moerge.models.expert_folder import DenseExpert
from moerge.noise.gaussian import SIGMA, Generator, discrete_gaussian
from moerge.noise.noisy_sums import release, write_whitenings
from moerge.noise.whitening import Whitenings
from moerge.statistics.contribution import router_manifest
from moerge.statistics.integers import pack, square_of, to_floats
from moerge.statistics.passes import RouterPass
from moerge_proto.statistics_file import Int64, RouterManifest, StatisticsFile, StatisticsSettings, write
from moerge_workers.noise.finishing import Noise
from moerge_workers.policy import PrivacyBudget
from support.models import expert

EPSILON, DELTA = 4.0, 1e-6
DOCUMENTS, TRIALS, RISK = 1000, 250, 0.01
_MEAN, _VARIANCE = 0.5, 0.5
NORMAL = NormalDist()


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> DenseExpert:
    return DenseExpert("code", expert(tmp_path_factory.mktemp("expert"), 1))


@pytest.fixture(scope="module")
def body(own: DenseExpert, tmp_path_factory: pytest.TempPathFactory) -> LocalBody:
    return local_body([own], tmp_path_factory.mktemp("body"), "average")


class Attack:
    """The worst case: the coordinator knows all other documents, which are alike; the tested one is at both limits.

    The others have the mean `_MEAN` of a clip in the first direction, and a covariance of `_VARIANCE` in all.
    """

    def __init__(self, own: DenseExpert, body: LocalBody, contributions: int, folder: Path) -> None:
        noise = Noise(PrivacyBudget(epsilon=EPSILON, delta=DELTA, contributions=contributions))
        settings = noise.settings(StatisticsSettings(context=64))
        work = RouterPass(own, body, body.exponents)
        blank = router_manifest("owner", "0" * 64, "code", body, settings)
        self._whitenings = Whitenings(folder / "whitening", noise.privacy, body.layers)
        write_whitenings(work, settings, self._whitenings.path)
        self._body, self._folder, self._contributions = body, folder, contributions
        self._generator = Generator(bytes(32))  # so that every run of the test has the same noise
        self._manifest = blank.model_copy(update={"documents": DOCUMENTS, "tokens": DOCUMENTS})
        self._layers = [self._whitenings.layer(layer) for layer in range(body.layers)]
        self._limits, self._bounds = self._whitenings.limits, feature_bounds(body)

    def score(self, member: bool) -> float:
        """The log likelihood ratio, but for constants, from released files: one, or those under twin seeds."""
        return sum(self._score(member) for _ in range(self._contributions))

    def _score(self, member: bool) -> float:
        exact, path, layers = self._folder / "exact", self._folder / "sums", list[Int64]()
        for whitening in self._layers:
            square, cross = np.eye(self._manifest.hidden_size) * _VARIANCE, np.zeros(self._manifest.hidden_size)
            square[0, 0] += (_MEAN * whitening.cross) ** 2
            square *= DOCUMENTS / whitening.gram
            cross[0] = _MEAN * DOCUMENTS
            square[1, 1] += member
            cross[1] += member
            layers += [
                (pack(square) * self._limits.gram).astype(np.int64),
                (cross * self._limits.cross).astype(np.int64),
            ]
        with exact.open("wb") as out:
            write(out, self._manifest, layers)
        release(exact, path, self._body, self._whitenings, self._generator)
        with StatisticsFile(path) as file:
            assert isinstance(file.manifest, RouterManifest)
            return sum(self._seen(file, layer) for layer in range(self._body.layers))

    def _seen(self, file: StatisticsFile, layer: int) -> float:
        """The tested document's direction in a layer's whitened moments, with the file's public steps undone."""
        whitening, bits, tokens = self._layers[layer], file.manifest.exponents[layer], file.manifest.tokens
        factor = whitening.factor.double()
        mean = torch.from_numpy(to_floats(file.cross(layer), bits)) / tokens
        second = square_of(file.gram(layer), bits) / tokens
        assert second.trace() < 0.999 * self._bounds[layer], "or the file's sums were scaled down"
        centred = torch.linalg.solve_triangular(factor, (mean - whitening.mean.double())[:, None], upper=False)[:, 0]
        left = torch.linalg.solve_triangular(factor, second - mean.outer(mean), upper=False)
        covariance = torch.linalg.solve_triangular(factor, left.mT, upper=False)
        spread = SIGMA * math.sqrt(2 * len(mean)) * whitening.gram / self._limits.gram / DOCUMENTS
        square = float(covariance[1, 1]) * (1 + spread) - spread - _VARIANCE + float(centred[1]) ** 2
        return DOCUMENTS * (float(centred[1]) / whitening.cross + square / whitening.gram)


def quantile(successes: int, share: float) -> float:
    """The probability at which at most so many of the trials succeed with the given share (Clopper and Pearson)."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        chances = (math.comb(TRIALS, k) * middle**k * (1 - middle) ** (TRIALS - k) for k in range(successes + 1))
        low, high = (middle, high) if sum(chances) > share else (low, middle)
    return low


def lower_bound(score: Callable[[bool], float], limit: float) -> float:
    """An epsilon that is too low with a risk of RISK, if the noise is Gaussian."""
    found, alarms = (sum(score(member) > limit for _ in range(TRIALS)) for member in (True, False))
    missed_most = quantile(TRIALS - found, RISK / 2)
    shift = -NORMAL.inv_cdf(missed_most) - NORMAL.inv_cdf(quantile(alarms, RISK / 2))

    def delta(epsilon: float) -> float:
        first, second = (NORMAL.cdf(sign * shift / 2 - epsilon / shift) for sign in (1, -1))
        return first - math.exp(epsilon) * second

    low, high = 0.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if shift > 0 and delta(middle) > DELTA else (low, middle)
    return low


@pytest.mark.slow
@pytest.mark.parametrize("contributions", [1, 2], ids=["one file", "files under twin seeds"])
def test_a_membership_test_stays_below_the_claim_and_halved_noise_does_not(
    own: DenseExpert, body: LocalBody, tmp_path: Path, contributions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    attack = Attack(own, body, contributions, tmp_path)
    limit = contributions * body.layers  # half of what both moments of each layer tell
    bound = lower_bound(attack.score, limit)
    print(f"epsilon is at least {bound:.2f}; claimed: {EPSILON:g}")
    assert bound < EPSILON

    def halved(count: int, generator: Generator) -> Int64:
        return discrete_gaussian(count, generator) // 2

    monkeypatch.setattr("moerge.noise.noisy_sums.discrete_gaussian", halved)
    broken = lower_bound(attack.score, limit)
    print(f"with half of the noise at least {broken:.2f}")
    assert broken > EPSILON
