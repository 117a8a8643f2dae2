"""The influence of owners: figures from sums are those of the tokens, and warnings name who goes beyond the bounds."""

import math
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from moerge.influence import measure, measured_layers, warnings
from moerge.routers.solve import solve_layers
from moerge_proto.influence import DomainInfluence
from moerge_proto.recipes import RECOMMENDED, SolveOptions
from moerge_proto.statistics_file import StatisticsFile
from support.statistics import LAYERS, manifest_of, shard_of, written

HIDDEN = 16
DOMAINS = ["law", "art", "code", "bread"]
OWNERS = ["ann", "ben", "ann", "eve"]
GAINS = torch.linspace(0.5, 2, HIDDEN).expand(LAYERS, HIDDEN)
OPTIONS = {
    "recommended": RECOMMENDED.solve,
    "ridge": SolveOptions(lambda_scale="relative", ridge_lambda=0.01, temperature=2.0),
}


def drawn(domain: int, tokens: int) -> Tensor:
    """[tokens, HIDDEN] features of a domain, RMS-normalised."""
    generator = torch.Generator().manual_seed(domain)
    centre = torch.randn(HIDDEN, generator=generator)
    x = torch.randn(tokens, HIDDEN, generator=generator) + 0.7 * centre
    return x / x.pow(2).mean(dim=1, keepdim=True).sqrt()


@pytest.fixture(scope="module")
def features() -> list[Tensor]:
    return [drawn(domain, 300 + 100 * domain) for domain in range(4)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, features: list[Tensor]) -> Iterator[list[StatisticsFile]]:
    """Each domain's contribution, law's in two parts."""
    folder = tmp_path_factory.mktemp("influence")
    parts = [(0, features[0][:100]), (0, features[0][100:]), *((d, features[d]) for d in range(1, 4))]
    with ExitStack() as stack:
        opened = []
        for number, (domain, part) in enumerate(parts):
            sums = shard_of(part)
            manifest = manifest_of(sums, 1, domain=DOMAINS[domain], first_shard=number)
            path = written(folder / str(number), manifest.model_copy(update={"owner": OWNERS[domain]}), sums)
            opened.append(stack.enter_context(StatisticsFile(path)))
        yield opened


def routers_of(files: list[StatisticsFile], names: list[str], options: SolveOptions) -> Tensor:
    """[D, H] of layer 0, solved from these domains alone."""
    chosen = [file for file in files if file.manifest.domain in names]
    return solve_layers(chosen, names, GAINS, options)[0][0]


@pytest.mark.parametrize("which", OPTIONS)
def test_figures_from_sums_are_those_of_the_tokens(
    files: list[StatisticsFile], features: list[Tensor], which: str
) -> None:
    options = OPTIONS[which]
    result = measure(files, DOMAINS, GAINS, options)
    assert result.layers == list(range(LAYERS))
    tokens = [GAINS[0].double() * feature.double() for feature in features]
    routers = routers_of(files, DOMAINS, options)
    for d, row in enumerate(result.domains):
        assert (row.domain, row.owner, row.tokens) == (DOMAINS[d], OWNERS[d], len(tokens[d]))
        values = torch.linalg.svdvals(tokens[d]) ** 2
        assert row.effective_rank == pytest.approx(float(values.sum() ** 2 / (values**2).sum()), rel=1e-3)
        left = [e for e in range(4) if OWNERS[e] != OWNERS[d]]
        fewer = routers_of(files, [DOMAINS[e] for e in left], options)
        for e in range(4):
            x, centre = tokens[e], tokens[e].mean(dim=0)
            spread = (x - centre).square().sum(dim=1).mean().sqrt()
            apart = float((tokens[d].mean(dim=0) - centre).norm() / spread)
            assert row.mean_distances[e] == pytest.approx(apart, rel=1e-3, abs=1e-4)
            if d != e:
                margin = x @ (routers[d] - routers[e])
                z = float(margin.mean() / margin.std(correction=0))
                assert row.drawn[e] == row.drawn_most[e] == pytest.approx((1 + math.erf(z / 2**0.5)) / 2, abs=1e-3)
            if OWNERS[d] == OWNERS[e]:
                assert row.moved[e] == 0
                continue
            changes = []
            for j in left:
                if j != e:
                    before = x @ (routers[j] - routers[e])
                    after = x @ (fewer[left.index(j)] - fewer[left.index(e)])
                    changes.append(float((before - after).square().mean().sqrt() / after.square().mean().sqrt()))
            assert row.moved[e] == pytest.approx(sorted(changes)[(len(changes) - 1) // 2], rel=1e-2, abs=1e-4)


def test_auto_measures_with_the_lambda_that_it_chose(files: list[StatisticsFile], tmp_path: Path) -> None:
    options = SolveOptions(lambda_scale="auto")
    with ExitStack() as stack:
        tuning = []
        for file in files[1:]:
            sums = shard_of(drawn(DOMAINS.index(file.manifest.domain) + 10, 200))
            split = {"split": "tuning", "tokens": sums.tokens, "documents": sums.documents}
            path = written(tmp_path / file.name, file.manifest.model_copy(update=split), sums)
            tuning.append(stack.enter_context(StatisticsFile(path)))
        result = measure([*files, *tuning], DOMAINS, GAINS, options)
        _, report = solve_layers([*files, *tuning], DOMAINS, GAINS, options)
    plain = options.model_copy(update={"lambda_scale": "absolute", "ridge_lambda": report.layers[0].ridge_lambda})
    for with_auto, same in zip(result.domains, measure(files, DOMAINS, GAINS, plain).domains, strict=True):
        assert with_auto.drawn == pytest.approx(same.drawn, abs=1e-6)


def test_a_version_of_one_owner_has_no_influence_to_tell(files: list[StatisticsFile]) -> None:
    [row] = (result := measure(files[:2], ["law"], GAINS, RECOMMENDED.solve)).domains
    assert (row.drawn, row.moved, row.mean_distances, result.warnings) == ([0.0], [0.0], [0.0], [])


@pytest.mark.parametrize(("layers", "owners", "count"), [(3, 4, 3), (32, 3, 8), (32, 15, 2), (32, 200, 1), (1, 1, 1)])
def test_the_measurement_is_bounded_and_spread(layers: int, owners: int, count: int) -> None:
    for start in (0, 5, 2**32 - 1):
        chosen = measured_layers(layers, owners, start)
        assert len(chosen) == count
        assert set(chosen) <= set(range(layers))
        gaps = [after - before for before, after in pairwise(chosen)]
        assert all(layers // count <= gap <= -(-layers // count) for gap in gaps)
    assert len({tuple(measured_layers(32, 3, start)) for start in range(32)}) == 4, "an owner can't foresee them"


def test_routers_of_a_few_tokens_are_warned_of(tmp_path: Path) -> None:
    for tokens, most in ((2, 1e9), (400, 99.0)):
        with ExitStack() as stack:
            opened = []
            for domain, name in enumerate(DOMAINS):
                sums = shard_of(drawn(domain, tokens))
                path = written(tmp_path / f"{name}-{tokens}", manifest_of(sums, 1, domain=name), sums)
                opened.append(stack.enter_context(StatisticsFile(path)))
            result = measure(opened, DOMAINS, torch.ones(LAYERS, HIDDEN), OPTIONS["recommended"]).warnings
            routers = solve_layers(opened, DOMAINS, torch.ones(LAYERS, HIDDEN), OPTIONS["recommended"])[0][0]
        scores = torch.cat([drawn(domain, tokens).double() for domain in range(4)]) @ routers.T
        sizes = scores.square().mean(dim=0).sqrt()
        named = [item for item in result if item.startswith("The scores of")]
        assert len(named) == int((sizes > 100).sum()), (tokens, sizes)
        assert float(sizes.max()) < most
        for size in sizes[sizes > 100].tolist():
            assert any(f" are {size:.0f} on average" in item for item in named)
        assert bool(named) is (tokens == 2)


def row(
    domain: str, owner: str = "", rank: float = 20.0, drawn: float = 0.03, most: float = 0.1, moved: float = 0.1
) -> DomainInfluence:
    """A domain's figures for each of three domains."""
    return DomainInfluence(
        domain=domain, owner=owner or f"{domain}-owner", tokens=1, documents=1, effective_rank=rank, gram_distance=0.4,
        mean_distances=[0.4] * 3, drawn=[drawn] * 3, drawn_most=[most] * 3, moved=[moved] * 3,
    )  # fmt: skip


def test_warnings_name_owner_and_value_only_for_outliers() -> None:
    honest = [row("law"), row("art"), row("code", rank=12.0, drawn=0.08, most=0.2, moved=0.18)]
    assert warnings(honest) == []
    [narrow] = warnings([*honest[:2], row("code", rank=1.0)])
    assert narrow.startswith("The features of code (owner code-owner) span 1.0 directions, those of others 20.0:")
    drawn = warnings([*honest[:2], row("code", drawn=0.33)])
    assert [item.partition(":")[0] for item in drawn] == [
        f"code (owner code-owner) is expected to draw 33 % of the tokens of {item} (owner {item}-owner)"
        for item in ("law", "art")
    ]
    assert len(warnings([*honest[:2], row("code", most=0.6)])) == 2
    [moved] = warnings([*honest[:2], row("code", moved=0.57)])
    assert moved == "Without code (owner code-owner), the scores of other domains change by 57 % of their spread"
    own = [row("law", "ann", drawn=0.4), row("art", "ann", drawn=0.4), row("code", "ann", rank=1)]
    assert warnings(own) == [], "an owner's own domains"
