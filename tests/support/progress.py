"""Silent progress, and an interruption."""

from moerge.progress import NoProgress


class Silent:
    """A tracker that says nothing."""

    def advance(self, n: int) -> None:
        pass


class Stopped(NoProgress):
    """Ends the work by Ctrl-C after so many units; 0: never."""

    def __init__(self, after: int) -> None:
        self._left = after

    def advance(self, n: int) -> None:
        self._left -= n
        if n and self._left == 0:
            raise KeyboardInterrupt
