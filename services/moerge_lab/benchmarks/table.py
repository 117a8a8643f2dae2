"""The table of a comparison, for terminals and programs."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from moerge_lab.benchmarks.comparison import Difference, Row, Score
from moerge_lab.benchmarks.models import Model

_NOTE = {
    "columns": "Scores are 100 x the metric, with standard errors. n: questions; chance: random choices.",
    "own": "Own: 100 x version / the task's own expert. To own: version - expert, in points, with paired errors.",
}


@dataclass(frozen=True)
class Comparison:
    """Rows of tasks for these models; `folder` has the results."""

    models: Sequence[Model]
    rows: Sequence[Row]
    folder: str

    @property
    def _versions(self) -> list[str]:
        return [model.name for model in self.models if model.role == "version"]

    def average(self, version: str) -> Difference | None:
        """Over the tasks that say something."""
        pairs = (row.difference(version) for row in self.rows)
        return Difference.average([item for item in pairs if item is not None])

    @property
    def notes(self) -> list[str]:
        result = []
        for row in self.rows:
            if row.says_nothing:
                who = "its expert is" if row.seed is None else "seed and expert are"
                result.append(f"{row.task} says nothing: {who} at chance; it isn't in the averages")
            elif row.seed_at_chance:
                result.append(f"{row.task} is at chance for the seed, not for the expert of {row.own}")
            if not row.chosen:
                result.append(
                    f"{row.task}: {row.own} is the best expert of the row; name it, as in {row.task}={row.own}"
                )
        return result

    def to_json(self) -> dict[str, object]:
        rows = []
        for row in self.rows:
            differences = {name: row.difference(name) for name in self._versions}
            rows.append(
                {
                    "task": row.task,
                    "chance": row.chance,
                    "own": row.own,
                    "own_named": row.chosen,
                    "says_nothing": row.says_nothing,
                    "results": {name: score.result.model_dump(mode="json") for name, score in row.scores.items()},
                    "versions": {name: item and asdict(item) for name, item in differences.items()},
                }
            )
        averages = {name: self.average(name) for name in self._versions}
        return {
            "models": [{"name": item.name, "role": item.role, "folder": str(item.folder)} for item in self.models],
            "tasks": rows,
            "averages": {name: item and asdict(item) for name, item in averages.items()},
            "notes": self.notes,
        }

    def render(self) -> Iterator[RenderableType]:
        """A table and sentences for a terminal."""
        others = [model.name for model in self.models if model.role != "version"]
        table = Table("task=expert", "n", "chance", *map(escape, others), title="Benchmarks")
        for name in self._versions:
            for heading in (name, "own", "to own"):
                table.add_column(escape(heading))
        for column in table.columns[1:]:
            column.justify = "right"
        for row in self.rows:
            cells = [str(len(row.scores[row.own].values)), f"{100 * row.chance:.1f}" if row.chance else ""]
            cells += [_score(row.scores[name]) for name in others]
            for name in self._versions:
                cells += [_score(row.scores[name]), *_cells(row.difference(name))]
            table.add_row(escape(f"{row.task}={row.own}"), *cells)
        table.add_section()
        cells = [""] * (2 + len(others))
        for name in self._versions:
            cells += ["", *_cells(self.average(name))]
        table.add_row("average", *cells)
        yield table
        yield from _NOTE.values()
        for line in self.notes:
            yield f"note: {line}"
        yield f"The results are in {self.folder}"


def _score(score: Score) -> str:
    error = score.result.standard_error
    return f"{100 * score.result.value:.1f}" + ("" if error is None else f" ± {100 * error:.1f}")


def _cells(item: Difference | None) -> list[str]:
    if item is None:
        return ["", ""]
    return [
        f"{item.normalised:.1f} ± {item.normalised_error:.1f}",
        f"{100 * item.difference:+.1f} ± {100 * item.difference_error:.1f}",
    ]
