"""A cohort of masked contributions: its sum is the plain one bit by bit, and nothing else of it can be read."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from moerge.errors import ContributionError, SolveError
from moerge.files import file_sha256
from moerge.masks.files import write_sum
from moerge.masks.keeper import Keeper, make_key
from moerge.routers.solve import solve_layers
from moerge.statistics.describe import description
from moerge.statistics.validate import validate
from moerge_proto.masks import MasksRequest, MaskSums, summed
from moerge_proto.recipes import SolveOptions
from moerge_proto.statistics_file import StatisticsFile, Sums, TextBefore
from support.masked import MaskedOwner
from support.statistics import LAYERS, honest_sums, manifest_of, written

HIDDEN = 12
DOMAINS = ["art", "code", "law"]
GAINS = torch.ones(LAYERS, HIDDEN)
BOUNDS = [float(HIDDEN)] * LAYERS


@dataclass
class Both:
    """The same sums, plain and masked, and the sum of the masked ones."""

    plain: list[StatisticsFile]
    masked: list[StatisticsFile]
    summed: Sums


@pytest.fixture
def both(tmp_path: Path) -> Iterator[Both]:
    with ExitStack() as stack:
        yield made(tmp_path, stack)


def made(folder: Path, stack: ExitStack, change: Callable[[str], int] = lambda domain: 0) -> Both:
    """`change`: an integer that an owner adds to an entry of its gram."""
    keepers = [Keeper(folder / name) for name in ("k1", "k2") if make_key(folder / name)]
    keys, plain, masked, parts = [keeper.public_key for keeper in keepers], [], [], []
    for seed, domain in enumerate(DOMAINS):
        owner, sums = MaskedOwner(domain), honest_sums(HIDDEN, 512, 1, HIDDEN, seed)
        sums.arrays["layers.1.gram"][3] += change(domain)
        for keeper in keepers:
            keeper.approve(owner.request, replace=False)
        manifest = manifest_of(sums, 1, domain=domain).model_copy(update={"owner": owner.name})
        plain.append(stack.enter_context(StatisticsFile(written(folder / f"{domain}.plain", manifest, sums))))
        path, part = owner.contribution(folder / f"{domain}.masked", manifest, sums, keys)
        masked.append(stack.enter_context(StatisticsFile(path)))
        parts.append(part)
    request, answers = MasksRequest(parts=parts), []
    for number, keeper in enumerate(keepers):
        path = folder / f"answer-{number}"
        path.write_bytes(b"".join(summed(request, keeper.public_key, keeper.seeds(request))))
        answers.append(stack.enter_context(MaskSums(path, HIDDEN, LAYERS, request.domains)))
    return Both(plain, masked, stack.enter_context(Sums(sum_of(folder, masked, answers))))


def sum_of(folder: Path, files: list[StatisticsFile], answers: Sequence[MaskSums]) -> Path:
    with (path := folder / "sum").open("wb") as out:
        write_sum(out, {file_sha256(folder / file.name): file for file in files}, answers)
    return path


def test_routers_of_masked_sums_are_the_plain_ones(both: Both, tmp_path: Path) -> None:
    options = SolveOptions(routers="discriminant")
    plain, report = solve_layers(both.plain, DOMAINS, GAINS, options)
    masked, same = solve_layers([both.summed], DOMAINS, GAINS, options)
    assert report == same
    for left, right in zip(plain, masked, strict=True):
        assert torch.equal(left, right)
    sums = honest_sums(HIDDEN, 512, 1, HIDDEN, 9)
    with StatisticsFile(written(tmp_path / "sea", manifest_of(sums, 1, domain="sea"), sums)) as sea:
        expected, _ = solve_layers([*both.plain, sea], [*DOMAINS, "sea"], GAINS, options)
        mixed, _ = solve_layers([both.summed, sea], [*DOMAINS, "sea"], GAINS, options)
    assert all(torch.equal(left, right) for left, right in zip(mixed, expected, strict=True))


def test_a_masked_file_shows_nothing_of_its_sums(both: Both) -> None:
    for plain, masked in zip(both.plain, both.masked, strict=True):
        for layer in range(LAYERS):
            mask = masked.gram(layer) - plain.gram(layer)
            bits = np.unpackbits(masked.gram(layer).view(np.uint8)).mean()
            assert 0.4 < bits < 0.6
            assert len(set(mask.tolist())) == len(mask)
    first = both.masked[0]
    with pytest.raises(ContributionError):
        validate(first, first.manifest.exponents, BOUNDS)


def test_weights_of_a_cohorts_domains_are_refused(both: Both) -> None:
    for weights in ({"law": 2.0}, {"art": 0.5}):
        with pytest.raises(SolveError, match="art, code, law are one sum"):
            solve_layers([both.summed], DOMAINS, GAINS, SolveOptions(domain_weights=weights))
    doubled = dict.fromkeys(DOMAINS, 2.0)
    assert solve_layers([both.summed], DOMAINS, GAINS, SolveOptions(domain_weights=doubled))


def test_the_sum_is_validated_like_one_contribution(both: Both, tmp_path: Path) -> None:
    manifest = both.summed.manifest
    assert validate(both.summed, manifest.exponents, BOUNDS) == []
    with ExitStack() as stack:
        (tmp_path / "poisoned").mkdir()
        poisoned = made(tmp_path / "poisoned", stack, lambda domain: 2**40 if domain == "law" else 0)
        with pytest.raises(ContributionError, match="not positive semidefinite"):
            validate(poisoned.summed, manifest.exponents, BOUNDS)


def test_other_text_before_is_refused(both: Both, tmp_path: Path) -> None:
    other = both.masked[1].manifest.settings.model_copy(update={"before": TextBefore(tokens=8, piece=8)})
    both.masked[1].manifest = both.masked[1].manifest.model_copy(update={"settings": other})
    with pytest.raises(ContributionError, match=r"found .* in (art|code|law), so their sums differ") as caught:
        sum_of(tmp_path, both.masked, [])
    assert caught.value.where == "manifest.settings.before"


def test_a_masked_file_is_described_without_figures(both: Both, tmp_path: Path) -> None:
    shown = description(tmp_path / "law.masked")
    assert "nothing else" in str(shown["reveals"])
    assert all(tensor["effective_rank"] is None for tensor in shown["tensors"])  # type: ignore[attr-defined]
