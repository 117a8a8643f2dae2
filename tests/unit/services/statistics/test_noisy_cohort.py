"""A cohort with noise: the sum has the noise that was divided, and what is released of it are sums of features."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from moerge.errors import ContributionError
from moerge.routers.solve import solve_layers
from moerge.statistics import whitening
from moerge.statistics.accumulate import ShardSums
from moerge.statistics.cohort import Cohort, CohortFiles
from moerge.statistics.describe import description
from moerge.statistics.integers import to_floats, unpack
from moerge.statistics.noise import SIGMA, Generator
from moerge.statistics.release import Domain, release_cohort, spread_of, suited
from moerge.statistics.validate import validate
from moerge.statistics.whitening import BoundedSum, Limits, Whitening, Whitenings, epsilon_alone, name_of
from moerge_proto.digests import sha256_hex
from moerge_proto.masks import MasksRequest, summed
from moerge_proto.options import SolveOptions
from moerge_proto.statistics_file import Int64, Privacy, RouterManifest, StatisticsFile, StatisticsSettings
from support.masked import MaskedOwner, keeper_of
from support.statistics import LAYERS, manifest_of, shard_of, written

SIZE, TOKENS = 24, 8
DOMAINS = ["art", "code", "law"]
COUNTS = [900, 1200, 1500]
PUBLIC = list(torch.randn(200, 30, SIZE, generator=torch.Generator().manual_seed(0)).unbind())
WHITENING = Whitening.of([item @ torch.linspace(0.2, 0.6, SIZE).diag() + 0.3 for item in PUBLIC])
PRIVACY = Privacy(epsilon=100.0, owners=3)
SETTINGS = StatisticsSettings(tokens_per_document=TOKENS).private(PRIVACY)


def documents_of(number: int) -> Tensor:
    """[documents, tokens, H], within the clips of the public text; each domain has a direction of its own."""
    generator = torch.Generator().manual_seed(number + 1)
    whitened = torch.rand(COUNTS[number], TOKENS, SIZE, generator=generator) - 0.5
    whitened[..., number] += 1.0
    return whitened @ WHITENING.factor.T + WHITENING.mean


def sums_of(features: Tensor, privacy: Privacy = PRIVACY) -> ShardSums:
    sums = BoundedSum(WHITENING, Limits.of(privacy, LAYERS), None)
    sums.add(features)
    parts = {"gram": sums.gram(0, None), "cross": sums.cross(0, None)}
    arrays = {f"layers.{layer}.{name}": part.copy() for layer in range(LAYERS) for name, part in parts.items()}
    return ShardSums(arrays, len(features) * TOKENS, len(features))


def manifest(domain: str, sums: ShardSums, settings: StatisticsSettings = SETTINGS) -> RouterManifest:
    return manifest_of(sums, 1, domain=domain).model_copy(update={"settings": settings})


@dataclass
class Noisy:
    """A cohort of masked contributions with noise, their exact sums, and the public whitening."""

    files: list[StatisticsFile]
    exact: list[ShardSums]
    found: CohortFiles
    whitenings: Whitenings
    stack: ExitStack

    @property
    def cohort(self) -> Cohort:
        """With the sums on the noise's grid."""
        return self.found.opened(self.stack, self.files)

    def released(self, folder: Path) -> Cohort:
        path = folder / "released"
        with path.open("wb") as out:
            digest = release_cohort(self.cohort, [float(SIZE)] * LAYERS, self.whitenings, out)
        assert digest == sha256_hex(path.read_bytes())
        return CohortFiles((), (), path).opened(self.stack, self.files)


@pytest.fixture
def noisy(tmp_path: Path) -> Iterator[Noisy]:
    with ExitStack() as stack:
        yield made(tmp_path, stack)


def made(folder: Path, stack: ExitStack) -> Noisy:
    owners, files, exact, parts = [MaskedOwner(domain) for domain in DOMAINS], [], [], []
    keeper = keeper_of(folder / "keeper", owners)
    for number, owner in enumerate(owners):
        exact.append(sums_of(documents_of(number)))
        blank = manifest(owner.domain, exact[-1])
        path, part = owner.contribution(folder / f"{owner.domain}.masked", blank, exact[-1], [keeper.public_key])
        files.append(stack.enter_context(StatisticsFile(path)))
        parts.append(part)
    request, answer = MasksRequest(parts=parts), folder / "answer"
    answer.write_bytes(b"".join(summed(request, keeper.seeds(request))))
    file = folder / "whitening"
    tensors = {name: getattr(WHITENING, name).contiguous() for name in ("mean", "factor", "clips")}
    every = {name_of(layer, name): item.clone() for layer in range(LAYERS) for name, item in tensors.items()}
    save_file(every, file)
    return Noisy(files, exact, CohortFiles((), [answer]), Whitenings(file, PRIVACY, LAYERS), stack)


def drawn(found: Sequence[Int64], exact: Sequence[Int64]) -> float:
    """The deviation of the noise in sums, in units of one drawing's."""
    noise = np.concatenate([one - other for one, other in zip(found, exact, strict=True)])
    return float(noise.std()) / SIGMA


def test_the_gram_has_the_noise_of_all_owners_and_a_cross_that_of_one(noisy: Noisy) -> None:
    """600 and 144 values: five of their standard errors."""
    cohort, layers, names = noisy.cohort, range(LAYERS), [f"layers.{layer}" for layer in range(LAYERS)]
    grams = [sum(item.arrays[f"{name}.gram"] for item in noisy.exact) for name in names]
    assert drawn([cohort.gram(layer) for layer in layers], grams) == pytest.approx(3**0.5, rel=0.15)  # type: ignore[arg-type]
    pairs = list(zip(DOMAINS, noisy.exact, strict=True))
    found = [cohort.cross(layer, domain) for layer in layers for domain in DOMAINS]
    crosses = [item.arrays[f"{name}.cross"] for name in names for _, item in pairs]
    assert drawn(found, crosses) == pytest.approx(1, rel=0.3)


def test_released_sums_are_those_of_the_features_at_a_large_epsilon(noisy: Noisy, tmp_path: Path) -> None:
    released = noisy.released(tmp_path)
    bits = released.manifest.exponents[0]
    features = [documents_of(number).flatten(0, 1).double() for number in range(3)]
    gram = torch.from_numpy(unpack(to_floats(released.gram(1), bits), SIZE))
    expected = sum((item.T @ item for item in features), torch.zeros(()))
    assert torch.dist(gram, expected) < 0.02 * expected.norm()
    for domain, item in zip(DOMAINS, features, strict=True):
        cross = torch.from_numpy(to_floats(released.cross(0, domain), bits))
        assert torch.dist(cross, item.sum(dim=0)) < 0.02 * item.sum(dim=0).norm()
    assert released.manifest.tokens == sum(COUNTS) * TOKENS
    assert validate(released, released.manifest.exponents, [float(SIZE)] * LAYERS, normalised=False) == []


def test_routers_of_a_cohort_are_near_those_without_noise_at_a_large_epsilon(noisy: Noisy, tmp_path: Path) -> None:
    with ExitStack() as stack:
        plain = []
        for number, domain in enumerate(DOMAINS):
            sums = shard_of(documents_of(number).flatten(0, 1))
            path = written(tmp_path / f"{domain}.plain", manifest_of(sums, 1, domain=domain), sums)
            plain.append(stack.enter_context(StatisticsFile(path)))
        options, gains = SolveOptions(routers="discriminant"), torch.ones(LAYERS, SIZE)
        expected, _ = solve_layers(plain, DOMAINS, gains, options)
        found, _ = solve_layers([noisy.released(tmp_path)], DOMAINS, gains, options)
    for one, other in zip(found, expected, strict=True):
        assert (torch.nn.functional.cosine_similarity(one, other) > 0.99).all()


def test_the_release_of_masked_files_is_that_of_their_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit by bit: of plain files with the same integers."""

    def none(count: int, generator: Generator) -> Int64:
        return np.zeros(count, dtype=np.int64)

    monkeypatch.setattr(whitening, "discrete_gaussian", none)
    with ExitStack() as stack:
        noisy, plain = made(tmp_path, stack), []
        alone = SETTINGS.private(PRIVACY.model_copy(update={"owners": 1}))  # noise of masked files is refused
        for domain, sums in zip(DOMAINS, noisy.exact, strict=True):
            path = written(tmp_path / f"{domain}.plain", manifest(domain, sums, alone), sums)
            plain.append(stack.enter_context(StatisticsFile(path)))
        outs = BytesIO(), BytesIO()
        for cohort, out in zip((noisy.cohort, Cohort(plain)), outs, strict=True):
            release_cohort(cohort, [float(SIZE)] * LAYERS, noisy.whitenings, out)
    assert outs[0].getvalue() == outs[1].getvalue()


def test_the_kind_of_sums_is_that_of_all_owners_documents(noisy: Noisy) -> None:
    """Divided noise is to all owners' documents as undivided noise is to one's."""
    divided = replace(noisy.whitenings, privacy=Privacy(epsilon=0.01, owners=3))
    alone = replace(noisy.whitenings, privacy=Privacy(epsilon=0.01))
    kinds = [suited(count, divided) for count in range(50, 1000, 50)]
    assert kinds == [suited(3 * count, alone) for count in range(50, 1000, 50)]
    assert set(kinds) == {"grams", "means"}
    sizes = [spread_of(Domain(100, drawings), WHITENING, alone.limits) for drawings in (1, 4)]
    assert sizes[1] == pytest.approx(2 * sizes[0])


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda settings: StatisticsSettings(), "privacy.epsilon"),
        (lambda settings: settings.private(Privacy(epsilon=100.0, owners=4)), "privacy.owners"),
        (lambda settings: settings.private(Privacy(epsilon=100.0, delta=1e-5, owners=3)), "privacy.delta"),
        (lambda settings: settings.model_copy(update={"tokens_per_document": 7}), "tokens_per_document"),
        (lambda settings: settings.model_copy(update={"precision": "bfloat16"}), "precision"),
    ],
)
def test_noise_of_other_settings_is_refused(
    noisy: Noisy, change: Callable[[StatisticsSettings], StatisticsSettings], field: str
) -> None:
    last = noisy.files[-1]
    last.manifest = last.manifest.model_copy(update={"settings": change(last.manifest.settings)})
    with pytest.raises(ContributionError, match=r"as in art, found .* in law") as caught:
        Cohort(noisy.files)
    assert caught.value.where == f"manifest.settings.{field}"


def test_a_masked_file_with_noise_says_what_bounds_it(noisy: Noisy, tmp_path: Path) -> None:
    shown = str(description(tmp_path / "law.masked")["reveals"])
    assert "at most what epsilon 100 and delta 1e-06 allow" in shown
    assert f"with all other owners, the bound is epsilon {epsilon_alone(PRIVACY):.3g}" in shown
    assert epsilon_alone(PRIVACY.model_copy(update={"owners": 1})) == pytest.approx(100.0)
    assert epsilon_alone(PRIVACY) > 140
