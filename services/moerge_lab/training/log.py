"""A training's log: one line of CSV per step."""

import time
from pathlib import Path
from statistics import fmean

from moerge_lab.training.loop import Step

HEADER = "step,tokens,loss,learning_rate,seconds\n"


class Log:
    """Step, its tokens, mean loss in nats, learning rate, and seconds since the last line.

    The file is begun, or loses the lines of later steps than those of the checkpoint.
    """

    def __init__(self, path: Path, steps: int) -> None:
        self._path, self._before = path, time.monotonic()
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.is_file() else []
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join([HEADER, *lines[1 : steps + 1]]), encoding="utf-8")

    def add(self, step: Step) -> None:
        now = time.monotonic()
        with self._path.open("a", encoding="utf-8") as out:
            out.write(f"{step.number},{step.tokens},{step.loss:.6f},{step.rate:.6g},{now - self._before:.3f}\n")
        self._before = now


def losses(log: Path) -> tuple[float, float]:
    """The mean losses of the first and the last tenth of the steps in a training's log."""
    result = [float(line.split(",")[2]) for line in log.read_text(encoding="utf-8").splitlines()[1:]]
    tenth = max(1, len(result) // 10)
    return fmean(result[:tenth]), fmean(result[-tenth:])
