"""The table's pictures: they say what the table says, and are well-formed whatever things are called."""

import math
from xml.etree import ElementTree

from moerge.scoring.perplexity import Score
from moerge_lab.recipes.registry import parse
from moerge_lab.table.plots import picture
from moerge_lab.table.table import Result, Row, Run, Table

DOMAINS = ("a & b", "<c>")
SVG = "{http://www.w3.org/2000/svg}"


def row(spec: str, name: str, *scores: tuple[float, float], active: float = 2e6) -> Row:
    """A row with normalised scores of two domains, of two equal documents each, per seed."""
    results = [
        Result(
            {d: [Score(-math.log(s / 100), 1)] * 2 for d, s in zip(("a & b", "<c>"), score, strict=True)}, active, 1.0
        )
        for score in scores
    ]
    return Row(Run(*parse(spec)), name, results)


def table(*rows: Row) -> Table:
    run = Run(*parse("experts"))
    own = [Row(run, f"{d} expert", row("experts", "", (100, 100)).results) for d in ("a & b", "<c>")]
    return Table(("a & b", "<c>"), [*own, *rows])


def texts(drawing: str) -> list[str]:
    return ["".join(item.itertext()) for item in ElementTree.fromstring(drawing).iter(f"{SVG}text")]  # noqa: S314


def test_plot_shows_average_and_active_parameters_of_each_row() -> None:
    drawing = picture(table(row("dume", "dume", (80, 90), (84, 94)), row("oracle", "oracle", (70, 71), active=9e6)))
    result = texts(drawing)
    after = result[result.index("dume") :]
    assert after[1:4] == ["87.0", "± 2.0", "2.0 M"]
    assert result[result.index("oracle") :][1:4] == ["70.5", "", "9.0 M"]
    assert {"● a & b", "● <c>", "<c> expert"} <= set(result)
    root = ElementTree.fromstring(drawing)  # noqa: S314  # our own
    assert root.findtext(f"{SVG}title") == "Normalised perplexity of each recipe"
    assert root.get("role") == "img"
    assert "prefers-color-scheme: dark" in drawing


def test_sweep_plot_has_a_curve_per_recipe_with_sorted_values() -> None:
    option, values = "lambda", [0.1, 10, 1]
    specs = [f"dume:{option}={value:g}" for value in values]
    rows = [row(spec, parse(spec)[2], (80 + v / 10, 80)) for spec, v in zip(specs, values, strict=True)]
    spec = f"regmean:k=2,{option}={values[0]:g}"
    other = row(spec, parse(spec)[2], (90, 90))
    drawing = picture(table(*rows, other), option)
    dots = [dot.get("class") for dot in ElementTree.fromstring(drawing).iter(f"{SVG}circle")]  # noqa: S314
    assert dots == ["dot c0"] * 3 + ["dot c1"]
    result = texts(drawing)
    assert [text for text in result if text in ("0.1", "1", "10")] == ["0.1", "1", "10"]
    assert result[-2:] == ["regmean:k=2", "dume"]


def test_pictures_have_no_dependence_on_where_they_are_shown() -> None:
    """Nothing is loaded from elsewhere, and no script runs."""
    drawing = picture(table(row("dume", "dume", (80, 90))))
    assert "<script" not in drawing
    assert "http" not in drawing.replace('xmlns="http://www.w3.org/2000/svg"', "")
