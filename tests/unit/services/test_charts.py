"""Charts: round scales, and values, whiskers and names at their places."""

from itertools import pairwise
from xml.etree import ElementTree

import pytest

from moerge.charts import Curve, line_chart, plot, scale, whole

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(
    ("values", "low", "high", "ticks"),
    [([61.0, 97.0], 60, 100, [60, 70, 80, 90, 100]), ([0.013, 0.021], 0.012, 0.022, None), ([5.0], 4, 6, None)],
)
def test_scales_end_at_round_values(values: list[float], low: float, high: float, ticks: list[float] | None) -> None:
    result = scale(values, 4)
    assert (result.low, result.high) == pytest.approx((low, high))
    assert ticks is None or list(result.ticks) == pytest.approx(ticks)
    assert (result.share(result.low), result.share(result.high)) == (0, 1)


def test_a_scale_is_no_narrower_than_its_span() -> None:
    assert (scale([5.0, 5.001], 8, span=1).high - scale([5.0, 5.001], 8, span=1).low) == pytest.approx(1, abs=0.5)
    assert scale([1.0, 1.5], 4, step=1).ticks == (1, 2)


def drawn(*curves: Curve, places: int = 3, room: float = 400) -> ElementTree.Element:
    across = [str(10 * place) for place in range(places)]
    parts = line_chart(curves, across, scale([0.0, 100.0], 4), 200, (room, room))
    return ElementTree.fromstring(whole("t", "", 500, 300, [plot(0, 0, 400, parts)]))  # noqa: S314  # our own


def names(picture: ElementTree.Element, kind: str) -> list[str]:
    """Texts of a class."""
    return [str(text.text) for text in picture.iter(f"{SVG}text") if kind in text.attrib.get("class", "").split()]


def test_whiskers_reach_from_below_to_above_their_dot() -> None:
    picture = drawn(Curve("a", [50.0, None, 25.0], "c0", [10.0, 0.0, 0.0], marked=True))
    assert [(dot.get("cx"), dot.get("cy")) for dot in picture.iter(f"{SVG}circle")] == [
        ("16.67%", "100.0"),
        ("83.33%", "150.0"),
    ]
    [whisker] = [line for line in picture.iter(f"{SVG}line") if "whisker" in line.attrib["class"]]
    assert (whisker.get("y1"), whisker.get("y2")) == ("120.0", "80.0")


def test_names_at_the_ends_of_lines_do_not_overlap() -> None:
    picture = drawn(*(Curve(f"{value}", [value] * 3, "c0") for value in (50.0, 50.5, 51.0)))
    labels = [text for text in picture.iter(f"{SVG}text") if "label" in text.attrib.get("class", "")]
    assert [label.text for label in labels] == ["51.0", "50.5", "50.0"]  # from above
    ys = [float(label.attrib["y"]) for label in labels]
    assert min(lower - upper for upper, lower in pairwise(ys)) >= 12


def test_places_have_as_many_names_as_fit() -> None:
    curve = Curve("a", [1.0] * 30, "c0")
    widest, narrow = (len(names(drawn(curve, places=30, room=room), "tick")) for room in (2000, 200))
    assert (widest, narrow) == (30 + 4, 3 + 4)  # with the heights, and the empty line of the heading
