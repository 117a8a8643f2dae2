"""What follows from versions' scores as experts join, by figures computed by hand."""

from collections.abc import Mapping

import pytest
from rich.console import Console
from rich.table import Table as RichTable

from moerge_lab.recipes.registry import parse
from moerge_lab.table.figure import Figure
from moerge_lab.table.joining_results import Joined, Version
from moerge_lab.table.table import Run

Scores = Mapping[str, tuple[float, ...]]


def version(trunk: str, scores: Scores, oracles: Scores) -> Version:
    """Of domains that are letters."""
    figures = [{name: Figure(values) for name, values in item.items()} for item in (scores, oracles)]
    return Version(tuple(trunk), tuple(scores), *figures)


JOINED = Joined(
    Run(*parse("dume")),
    ("a", "b", "c", "d"),
    [
        version("ab", {"a": (90, 92), "b": (80, 82)}, {"a": (92, 92), "b": (88, 88)}),
        version("ab", {"a": (89, 91), "b": (81, 83), "c": (60, 60)}, {"a": (92, 92), "b": (88, 88), "c": (63, 60)}),
        version(
            "ab",
            {"a": (89, 91), "b": (81, 83), "c": (60, 60), "d": (86, 86)},
            {"a": (92, 92), "b": (88, 88), "c": (63, 60), "d": (90, 90)},
        ),
        version("abc", {"a": (86, 86), "b": (84, 84), "c": (88, 88)}, {"a": (90, 90), "b": (86, 86), "c": (89, 89)}),
        version("abcd", dict.fromkeys("abcd", (79.5, 80.5)), dict.fromkeys("abcd", (84.0, 84.0))),
    ],
)
"""The averages: 85 and 87; 230 / 3 and 78; 79 and 80. Merged anew: 86 for three, 79.5 and 80.5 for four."""


def test_kept_trunk_versions_are_compared_with_remerged_ones() -> None:
    assert [item.domains for item in JOINED.kept] == [("a", "b"), ("a", "b", "c"), ("a", "b", "c", "d")]
    assert [item.average.mean for item in JOINED.kept] == pytest.approx([86, (230 / 3 + 78) / 2, 79.5])
    one, two = JOINED.joining
    assert (one.newcomers, two.newcomers) == (("c",), ("c", "d"))
    assert one.gained.values == pytest.approx([86 - 230 / 3, 8])
    assert two.gained.values == pytest.approx([0.5, 0.5])
    assert one.oracle_gained.values == pytest.approx([265 / 3 - 81, 265 / 3 - 80])
    assert two.oracle_gained.values == pytest.approx([84 - 83.25, 84 - 82.5])


def test_the_estimate_is_the_coordinator_s_seed_by_seed() -> None:
    """M = 90 and N = 63 or 60: a third of 27 or 30 points, less 10 x 1 / (1 x 3). Of two, N = 76.5 or 75: half of 13.5
    or 15, less 10 x 2 / (1 x 4)."""
    one, two = JOINED.joining
    assert one.expected.values == pytest.approx([9 - 10 / 3, 10 - 10 / 3])
    assert two.expected.values == pytest.approx([6.75 - 5, 7.5 - 5])


def test_conclusions_state_remerge_gain_and_estimate_error() -> None:
    """Expected 37 / 6 and 2.125; the oracles gained 47 / 6 and 1.125, the averages 26 / 3 and 0.5, over the seeds."""
    assert JOINED.conclusions() == [
        "dume: a remerge gains +8.7 at version 2 and +0.5 at version 3; it pays from 1 point on: at 2.",
        "The oracle's average gained +4.5 points in 2 remerges, +1.1 to +7.8. The estimate's error was -0.3 on average,"
        " 1.3 without the sign, 1.7 at most. Of 2 remerges expected to gain 1 or more, 2 did; of the others, 0.",
        "The average gained +4.6 points in 2 remerges, +0.5 to +8.7. The estimate's error was -0.4 on average,"
        " 2.1 without the sign, 2.5 at most. Of 2 remerges expected to gain 1 or more, 1 did; of the others, 0.",
    ]


def test_a_gain_that_was_not_expected_is_told() -> None:
    grown = {"a": (90.0,), "b": (90.0,), "c": (90.0,)}
    after = version("abc", dict.fromkeys("abc", (93.0,)), dict.fromkeys("abc", (90.5,)))
    joined = Joined(
        JOINED.run, ("a", "b", "c"), [version("ab", {"a": (1,), "b": (1,)}, {}), version("ab", grown, grown), after]
    )
    assert joined.conclusions()[2].endswith(
        "Of 0 remerges expected to gain 1 or more, 0 did; of the others, 1, +3.0 at most."
    )


@pytest.mark.parametrize(("width", "tables"), [(140, 1), (60, 2)])
def test_the_table_has_a_dash_for_domains_that_are_not_in_yet(width: int, tables: int) -> None:
    result = [item for item in JOINED.render(Console(width=width)) if isinstance(item, RichTable)]
    assert len(result) == tables
    columns = {str(column.header): list(column.cells) for item in result for column in item.columns}
    assert columns["version"] == ["1 a, b", "2 + c", "", "", "3 + d", "", ""]
    assert columns["trunk"] == ["merged", "kept", "remerged", "gain", "kept", "remerged", "gain"]
    assert columns["c"] == ["-", "60.0", "88.0", "+28.0", "60.0", "80.0", "+20.0"]
    assert columns["d"] == ["-", "-", "-", "-", "86.0", "80.0", "-6.0"]
    assert columns["average"][:4] == ["86.0 ± 1.4", "77.3 ± 0.9", "86.0 ± 0.0", "+8.7"]
    assert columns["oracle"][3] == "+7.8"
    assert columns["expected"] == ["", "", "", "+6.2", "", "", "+2.1"]
