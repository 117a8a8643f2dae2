"""Laws 3 and 5: a version is a pure function of its set of shards; order, grouping and history change no bit."""

from collections.abc import Sequence
from functools import cache, reduce
from io import BytesIO
from operator import add
from pathlib import Path
from tempfile import mkdtemp

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moerge.errors import ContributionError
from moerge.merging.local import LocalTrunk, local_trunk, local_version
from moerge.models.expert_folder import DenseExpert
from moerge.routers.system import ridge_system
from moerge.statistics.accumulate import ShardSums
from moerge.versions.plan import plan_version
from moerge_proto.statistics_file import MAX_TOKENS, StatisticsFile
from support.models import expert
from support.statistics import LAYERS, honest_shards, manifest_of, written

HIDDEN = 12
SIZES = {"hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": 2, "num_key_value_heads": 1}
DOMAINS = ("law", "art", "code")
SHARDS = {domain: honest_shards(HIDDEN, 40, 4, HIDDEN, seed) for seed, domain in enumerate(DOMAINS)}
Group = tuple[str, Sequence[int]]  # a domain, and the shards that one contribution of it holds


@cache
def merged() -> tuple[dict[str, DenseExpert], LocalTrunk]:
    """An expert of each domain, and their trunk."""
    home = Path(mkdtemp(prefix="law-3-"))
    experts = {
        domain: DenseExpert(domain, expert(home / domain, seed, **SIZES))  # type: ignore[arg-type]  # no family
        for seed, domain in enumerate(DOMAINS, 1)
    }
    return experts, local_trunk(list(experts.values()), home / "trunk", "average")


def contributed(folder: Path, groups: Sequence[Group]) -> list[Path]:
    """A router contribution of each group."""
    paths = []
    for domain, members in groups:
        sums: ShardSums = reduce(add, [SHARDS[domain][member] for member in members])
        manifest = manifest_of(sums, len(members), domain=domain, first_shard=min(members))
        paths.append(written(folder / f"{domain}-{'-'.join(map(str, sorted(members)))}", manifest, sums))
    return paths


def version(folder: Path, groups: Sequence[Group], domains: Sequence[str]) -> dict[str, bytes]:
    """Every file of the version by the recommended options, from contributions handed in in the groups' order."""
    experts, trunk = merged()
    plan = plan_version(*local_version([experts[domain] for domain in domains], trunk, contributed(folder, groups)))
    files = {}
    for file in plan.files:
        out = BytesIO()
        file.write(out)
        files[file.name] = out.getvalue()
    return files


def solved(folder: Path, groups: Sequence[Group], domains: Sequence[str]) -> tuple[bytes, bytes]:
    """The bytes that follow from the sums: routers and report."""
    files = version(folder, groups, domains)
    return files["model-router.safetensors"], files["moerge-report.json"]


@st.composite
def groupings(draw: st.DrawFn) -> list[Group]:
    """Every domain's shards in any order, cut into any contributions, and these in any order."""
    groups: list[Group] = []
    for domain in DOMAINS:
        order = draw(st.permutations(range(4)))
        cuts = sorted(draw(st.sets(st.integers(1, 3))))
        groups += [(domain, order[start:end]) for start, end in zip([0, *cuts], [*cuts, 4], strict=True)]
    return draw(st.permutations(groups))


@settings(max_examples=20, deadline=None)
@given(groups=groupings())
def test_law_3_any_order_and_grouping_gives_the_same_bits(
    tmp_path_factory: pytest.TempPathFactory, groups: list[Group]
) -> None:
    straight: list[Group] = [(domain, range(4)) for domain in DOMAINS]
    folder = tmp_path_factory.mktemp("groups")
    assert solved(folder, groups, DOMAINS) == solved(folder, straight, DOMAINS)


@settings(max_examples=20, deadline=None)
@given(groups=groupings(), data=st.data())
def test_law_3_the_order_of_arrival_changes_no_file(
    tmp_path_factory: pytest.TempPathFactory, groups: list[Group], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("order")
    other = data.draw(st.permutations(groups))
    assert version(folder, other, DOMAINS) == version(folder, groups, DOMAINS)


@settings(max_examples=20, deadline=None)
@given(groups=groupings(), gone=st.sampled_from(DOMAINS))
def test_law_5_what_is_left_out_leaves_no_trace(
    tmp_path_factory: pytest.TempPathFactory, groups: list[Group], gone: str
) -> None:
    """Leaving a domain out of the sums equals a fresh coordinator that never had it."""
    folder = tmp_path_factory.mktemp("left-out")
    left = [domain for domain in DOMAINS if domain != gone]
    remaining = [group for group in groups if group[0] != gone]
    fresh: list[Group] = [(domain, range(4)) for domain in left]
    assert solved(folder, remaining, left) == solved(folder, fresh, left)


def test_law_3_a_shard_more_is_another_version(tmp_path: Path) -> None:
    less: list[Group] = [("law", range(3)), ("art", range(4)), ("code", range(4))]
    more: list[Group] = [("law", range(4)), ("art", range(4)), ("code", range(4))]
    assert solved(tmp_path, less, DOMAINS) != solved(tmp_path, more, DOMAINS)


def test_gains_are_multiplied_back_in(tmp_path: Path) -> None:
    """The system is that of x = w u: W^T W over u, scaled on both sides."""
    sums = reduce(add, SHARDS["law"])
    with StatisticsFile(written(tmp_path / "file", manifest_of(sums, 4), sums)) as file:
        plain = ridge_system([file], ["law"], 0, torch.ones(HIDDEN))
        gain = torch.linspace(-1, 2, HIDDEN)
        scaled = ridge_system([file], ["law"], 0, gain)
    weight = torch.diag(gain.double())
    torch.testing.assert_close(scaled[0], weight @ plain[0] @ weight)
    torch.testing.assert_close(scaled[1], weight @ plain[1])


def test_more_tokens_than_the_integers_have_room_for_are_refused(tmp_path: Path) -> None:
    sums = reduce(add, SHARDS["law"])
    manifest = manifest_of(sums, 4).model_copy(update={"tokens": MAX_TOKENS // 2 + 1})
    with StatisticsFile(written(tmp_path / "file", manifest, sums)) as file, pytest.raises(ContributionError):
        ridge_system([file, file], ["law"], 0, torch.ones(HIDDEN))
