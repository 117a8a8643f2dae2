"""Law 3: a version is a pure function of its set of shards; order, grouping and history change no bit."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.lineages import DOMAINS, Group, groupings, solved, version


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


def test_law_3_a_shard_more_is_another_version(tmp_path: Path) -> None:
    less: list[Group] = [("law", range(3)), ("art", range(4)), ("code", range(4))]
    more: list[Group] = [("law", range(4)), ("art", range(4)), ("code", range(4))]
    assert solved(tmp_path, less, DOMAINS) != solved(tmp_path, more, DOMAINS)
