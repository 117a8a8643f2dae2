"""Output of `moerge demo` before, in and after its stages."""

import io
from pathlib import Path

from rich.console import Console

from moerge_lab.demo.stages import STAGES, Stages


def test_stages_are_listed_first_and_rerun_marks_finished_ones(tmp_path: Path) -> None:
    def run(*, trained: bool) -> tuple[Stages, io.StringIO]:
        shown = io.StringIO()
        return Stages(tmp_path / "home", "recommended", Console(file=shown, width=80), trained=trained), shown

    def done(shown: io.StringIO) -> list[bool]:
        lines = [line for line in shown.getvalue().splitlines() if line.strip()[:2] in {f"{n}." for n in range(1, 6)}]
        return [line.endswith("done in an earlier run") for line in lines]

    first, shown = run(trained=False)
    first.introduce()
    assert all(f"{title} " in shown.getvalue() and time in shown.getvalue() for title, time in STAGES)
    assert done(shown) == [False] * 5
    first.begin(1)
    first.interrupted()
    assert "Stopped. Run the same command again: it continues from here." in shown.getvalue()

    second, shown = run(trained=True)
    for number in (1, 2, 3):
        second.begin(number)
    third, shown = run(trained=True)
    third.introduce()
    assert done(shown) == [True, True, False, False, False]
    untrained, shown = run(trained=False)  # other texts, or another cache
    untrained.introduce()
    assert done(shown) == [False] * 5
    third.finish()
    third.interrupted()
    assert "Stopped" not in shown.getvalue()


def test_command_is_one_line_and_dimmed_on_a_terminal(tmp_path: Path) -> None:
    words = ("worker", "run", "--data", tmp_path / "[a] b.jsonl", "--home", Path.cwd() / "home", "x" * 80)
    shown = io.StringIO()
    Stages(tmp_path, "dume", Console(file=shown, width=60), trained=False).command(*words)
    assert shown.getvalue() == f"$ moerge worker run --data '{tmp_path}/[a] b.jsonl' --home home {'x' * 80}\n"
    shown = io.StringIO()
    console = Console(file=shown, width=60, force_terminal=True, color_system="standard", legacy_windows=False)
    Stages(tmp_path, "dume", console, trained=False).command(*words)
    assert shown.getvalue().startswith("\x1b[2m$ moerge worker run")
    assert shown.getvalue().count("\n") == 1
