"""Laws 3 and 5: routers are a pure function of the set of shards; order, grouping and history change no bit."""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import reduce
from operator import add
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moerge.errors import ContributionError
from moerge.routers.ridge import solve
from moerge.routers.system import ridge_system
from moerge.statistics.accumulate import ShardSums
from moerge_proto.statistics_file import MAX_TOKENS, StatisticsFile
from support.statistics import LAYERS, honest_shards, manifest_of, written

HIDDEN = 12
DOMAINS = ("law", "art", "code")
SHARDS = {domain: honest_shards(HIDDEN, 40, 4, HIDDEN, seed) for seed, domain in enumerate(DOMAINS)}
Group = tuple[str, Sequence[int]]  # a domain, and which of its shards one contribution holds


def routers(folder: Path, groups: Sequence[Group], domains: Sequence[str]) -> list[bytes]:
    """The routers' bytes from one contribution per group, handed in in the groups' order."""
    with ExitStack() as stack:
        files = []
        for number, (domain, members) in enumerate(groups):
            sums: ShardSums = reduce(add, [SHARDS[domain][member] for member in members])
            manifest = manifest_of(sums, len(members), domain=domain)
            files.append(stack.enter_context(StatisticsFile(written(folder / str(number), manifest, sums))))
        gain = torch.linspace(-1.5, 2, HIDDEN)
        systems = [ridge_system(files, domains, layer, gain) for layer in range(LAYERS)]
    return [solve(gram, cross, 0.01).numpy().tobytes() for gram, cross in systems]


@st.composite
def groupings(draw: st.DrawFn) -> list[Group]:
    """Every domain's shards in any order, cut into any contributions, and these in any order."""
    groups: list[Group] = []
    for domain in DOMAINS:
        order = draw(st.permutations(range(4)))
        cuts = sorted(draw(st.sets(st.integers(1, 3))))
        groups += [(domain, order[start:end]) for start, end in zip([0, *cuts], [*cuts, 4], strict=True)]
    return draw(st.permutations(groups))


@settings(max_examples=40, deadline=None)
@given(groups=groupings())
def test_law_3_any_order_and_grouping_gives_the_same_bits(
    tmp_path_factory: pytest.TempPathFactory, groups: list[Group]
) -> None:
    straight: list[Group] = [(domain, range(4)) for domain in DOMAINS]
    folder = tmp_path_factory.mktemp("groups")
    assert routers(folder, groups, DOMAINS) == routers(folder, straight, DOMAINS)


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
    assert routers(folder, remaining, left) == routers(folder, fresh, left)


def test_law_3_a_shard_more_is_another_version(tmp_path: Path) -> None:
    less: list[Group] = [("law", range(3)), ("art", range(4)), ("code", range(4))]
    more: list[Group] = [("law", range(4)), ("art", range(4)), ("code", range(4))]
    assert routers(tmp_path, less, DOMAINS) != routers(tmp_path, more, DOMAINS)


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
