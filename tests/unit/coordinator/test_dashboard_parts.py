"""What the dashboard draws and says, without a coordinator."""

from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree

import pytest

from moerge_coordinator.dashboard.attention import needs
from moerge_coordinator.dashboard.charts import Node, curves, graph, heat, scale
from moerge_coordinator.dashboard.formatting import ago, markdown, step
from moerge_proto.problems import Problem, ProblemType
from moerge_proto.rounds import Round
from moerge_proto.trunks import Trunk, TrunkOptions
from moerge_proto.workflows import WorkflowEntry

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)
HOSTILE = "<script>&\"'"
SVG = "{http://www.w3.org/2000/svg}"


def drawn(picture: str) -> ElementTree.Element:
    return ElementTree.fromstring(picture)  # noqa: S314  # our own


@pytest.mark.parametrize(
    ("values", "low", "high", "ticks"),
    [([61.0, 97.0], 60, 100, [60, 70, 80, 90, 100]), ([0.013, 0.021], 0.012, 0.022, None), ([5.0], 4, 6, None)],
)
def test_scales_end_at_round_values(values: list[float], low: float, high: float, ticks: list[float] | None) -> None:
    found = scale(values)
    assert (found.low, found.high) == pytest.approx((low, high))
    assert ticks is None or list(found.ticks) == pytest.approx(ticks)
    assert found.place(found.high) < found.place(found.low)


def test_curves_draw_each_value_at_its_place_and_leave_gaps() -> None:
    picture = drawn(curves("t", ["a", "b"], {"a": [1, 2, 3], "b": [None, 2, None]}, ["1", "2", "3"], "a").picture)
    [line] = picture.iter(f"{SVG}polyline")
    points = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    assert [y for _, y in points] == sorted((y for _, y in points), reverse=True)
    alone = [circle for circle in picture.iter(f"{SVG}circle") if "c1" in circle.attrib["class"]]
    assert (float(alone[0].attrib["cx"]), float(alone[0].attrib["cy"])) == pytest.approx(points[1])


def test_heat_has_a_cell_for_each_value_with_its_colour_and_words() -> None:
    cells = list(drawn(heat("t", ["law", "art"], [[0.0, 0.55], [1.0, 0.45]])).iter(f"{SVG}rect"))
    assert [cell.attrib["class"] for cell in cells] == ["cell q0", "cell q5", "cell q9", "cell q4"]
    assert cells[1].findtext(f"{SVG}title") == "law, layer 1: 55.0 %"


def test_no_name_gets_out_of_its_picture() -> None:
    pictures = [
        curves(HOSTILE, [HOSTILE], {HOSTILE: [1, 2]}, [HOSTILE, "2"]).picture,
        heat(HOSTILE, [HOSTILE], [[0.5]]),
        graph(HOSTILE, [(HOSTILE, [Node(HOSTILE, HOSTILE)])]),
    ]
    for picture in pictures:
        assert "<script>" not in picture
        assert drawn(picture).attrib["aria-label"] == HOSTILE
        assert drawn(picture).findtext(f"{SVG}title") == HOSTILE


def test_the_graph_joins_each_node_to_its_sources() -> None:
    picture = drawn(graph("t", [("a", [Node("1", ""), Node("2", "")]), ("b", [Node("3", "", (0, 1))])]))
    assert len(list(picture.iter(f"{SVG}rect"))) == 3
    assert len(list(picture.iter(f"{SVG}path"))) == 2


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(3, "just now"), (90, "2 min ago"), (7200, "2 h ago"), (3 * 86400, "3 d ago"), (-3600, "in 1 h")],
)
def test_times_are_relative_and_absolute_on_hover(seconds: float, words: str) -> None:
    when = NOW - timedelta(seconds=seconds)
    assert words in ago(when, NOW)
    assert f'title="{when:%Y-%m-%d %H:%M:%S} UTC"' in ago(when, NOW)


def test_colour_steps_cover_the_scale() -> None:
    assert [step(value, 0, 1) for value in (-1, 0, 0.1, 0.99, 1, 2)] == ["q0", "q0", "q1", "q9", "q9", "q9"]


def test_markdown_renders_no_html_and_no_odd_links() -> None:
    text = markdown(
        "---\nlicense: mit\n---\n# Title\n\n<script>x</script> [a](javascript:x) | [b](https://example.org)"
    )
    assert "license" not in text
    assert "<h3>Title</h3>" in text
    assert "<script>" not in text
    assert 'href="javascript' not in text
    assert 'href="https://example.org"' in text


def workflow(id_: str, state: str) -> WorkflowEntry:
    problem = Problem.of(ProblemType.CONFLICT, "why") if state == "failed" else None
    fields = {"id": id_, "state": state, "problem": problem, "kind": "version", "created": NOW, "updated": NOW}
    return WorkflowEntry.model_validate(fields)


def test_a_failed_workflow_needs_a_hand_until_it_was_started_again() -> None:
    assert [each.what for each in needs(None, None, None, [], [], [workflow("version-a-1", "failed")])] == [
        "Work on a version failed: why"
    ]
    again = [workflow("version-a-2", "done"), workflow("version-a-1", "failed")]
    assert needs(None, None, None, [], [], again) == []


def test_a_retired_trunk_and_a_short_round_need_a_hand() -> None:
    trunk = Trunk(
        digest="0" * 64, method="average", options=TrunkOptions(), experts=[], contributions=[], family="llama",
        hidden_size=8, layers=1, exponents=[1], tensors=1, files=[], current=True, created=NOW, retired=NOW,
    )  # fmt: skip
    asked = Round.model_validate(
        {
            "number": 1,
            "name": "spring",
            "kind": "router",
            "trunk": None,
            "minimum": 2,
            "deadline": NOW,
            "state": "short",
            "contributed": ["law"],
            "missing": ["art"],
            "created": NOW,
        }
    )
    found = [each.what for each in needs(None, None, trunk, [], [asked], [])]
    assert found == [
        "The current trunk is retired", "Round spring ended short: art did not contribute",
        "There is a trunk, but no version",
    ]  # fmt: skip
