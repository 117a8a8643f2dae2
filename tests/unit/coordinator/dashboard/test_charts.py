"""Charts: values at their places, and names as text."""

from xml.etree import ElementTree

import pytest

from moerge_coordinator.dashboard.charts import curves, heat

HOSTILE = "<script>&\"'"
SVG = "{http://www.w3.org/2000/svg}"


def drawn(picture: str) -> ElementTree.Element:
    return ElementTree.fromstring(picture)  # noqa: S314  # our own


def test_curves_draw_each_value_at_its_place_and_leave_gaps() -> None:
    picture = drawn(curves("t", ["a", "b"], {"a": [1, 2, 3], "b": [None, 2, None]}, ["1", "2", "3"], "a").picture)
    [line] = picture.iter(f"{SVG}polyline")
    points = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    assert [y for _, y in points] == sorted((y for _, y in points), reverse=True)
    alone = [circle for circle in picture.iter(f"{SVG}circle") if "c1" in circle.attrib["class"]]
    place = float(alone[0].attrib["cx"].removesuffix("%")), float(alone[0].attrib["cy"])
    assert place == pytest.approx(points[1])


def test_lines_end_at_a_gap_and_dots_are_not_joined() -> None:
    values: dict[str, list[float | None]] = {"a": [1.0, 2.0, None, 3.0, 4.0], "b": [1.0, 2.0, 3.0, 4.0, 5.0]}
    picture = drawn(curves("t", ["a", "b"], values, list("12345"), dots="b").picture)
    assert [len(line.attrib["points"].split()) for line in picture.iter(f"{SVG}polyline")] == [2, 2]
    assert len(list(picture.iter(f"{SVG}circle"))) == 5


def test_heatmap_has_a_coloured_and_labelled_cell_per_value() -> None:
    cells = list(drawn(heat("t", ["law", "art"], [[0.0, 0.55], [1.0, 0.45]])).iter(f"{SVG}rect"))
    assert [cell.attrib["class"] for cell in cells] == ["cell q0", "cell q5", "cell q9", "cell q4"]
    assert cells[1].findtext(f"{SVG}title") == "law, layer 1: 55.0 %"


def test_no_name_gets_out_of_its_picture() -> None:
    pictures = [
        curves(HOSTILE, [HOSTILE], {HOSTILE: [1, 2]}, [HOSTILE, "2"]).picture,
        heat(HOSTILE, [HOSTILE], [[0.5]]),
    ]
    for picture in pictures:
        assert "<script>" not in picture
        assert drawn(picture).attrib["aria-label"] == HOSTILE
        assert drawn(picture).findtext(f"{SVG}title") == HOSTILE
