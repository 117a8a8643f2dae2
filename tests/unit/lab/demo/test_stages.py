"""Output of `moerge demo` before, in and after its stages."""

import io
from pathlib import Path

from moerge.terminal import Screen
from moerge_lab.demo.stages import STAGES, Stages


def test_stages_come_first_and_a_stop_says_how_to_go_on() -> None:
    shown = io.StringIO()
    stages = Stages(Screen(file=shown, width=100))
    stages.introduce()
    assert all(f". {title}\n" in shown.getvalue() for title in STAGES)
    stages.begin(1)
    stages.begin(3)
    stages.interrupted()
    stopped = "Stopped. Run the same command again: it continues from here."
    assert shown.getvalue().count(stopped) == 1
    stages.finish()
    seconds = [line.split()[-2:] for line in shown.getvalue().splitlines() if line.endswith(" s")]
    assert seconds == [["0", "s"], ["0", "s"]], "a line for each stage that ran"
    stages.interrupted()
    assert shown.getvalue().count(stopped) == 1


def test_command_is_one_line_and_dimmed_on_a_terminal(tmp_path: Path) -> None:
    words = ("worker", "run", "--data", tmp_path / "[a] b.jsonl", "--home", Path.cwd() / "home", "x" * 80)
    shown = io.StringIO()
    Stages(Screen(file=shown, width=60)).command(*words)
    assert shown.getvalue() == f"$ moerge worker run --data '{tmp_path}/[a] b.jsonl' --home home {'x' * 80}\n"
    shown = io.StringIO()
    console = Screen(file=shown, width=60, force_terminal=True, color_system="standard", legacy_windows=False)
    Stages(console).command(*words)
    assert shown.getvalue().startswith("\x1b[2m$ moerge worker run")
    assert shown.getvalue().count("\n") == 1
