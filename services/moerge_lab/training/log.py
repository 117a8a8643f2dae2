"""A training's log: one line of CSV per step."""

import time
from pathlib import Path
from statistics import fmean

from moerge_lab.training.loop import Step

HEADER = "step,tokens,loss,learning_rate,seconds\n"


class Log:
    """The log of a training: step, its tokens, mean loss in nats, learning rate, and seconds since the last line.

    Args:
        path: its file.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._then = path, time.monotonic()

    def resumed(self, steps: int) -> None:
        """Begins the file, or drops lines of later steps than a checkpoint's."""
        lines = self._path.read_text(encoding="utf-8").splitlines(keepends=True) if self._path.is_file() else []
        self._path.write_text("".join([HEADER, *lines[1 : steps + 1]]), encoding="utf-8")
        self._then = time.monotonic()

    def done(self, step: Step) -> None:
        """Adds a line."""
        now = time.monotonic()
        with self._path.open("a", encoding="utf-8") as out:
            out.write(f"{step.number},{step.tokens},{step.loss:.6f},{step.rate:.6g},{now - self._then:.3f}\n")
        self._then = now


def losses(log: Path) -> tuple[float, float]:
    """The mean losses of the first and the last tenth of the steps in a training's log."""
    found = [float(line.split(",")[2]) for line in log.read_text(encoding="utf-8").splitlines()[1:]]
    tenth = max(1, len(found) // 10)
    return fmean(found[:tenth]), fmean(found[-tenth:])
