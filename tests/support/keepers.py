"""A keeper of masks: its home, and its commands in processes of their own."""

from pathlib import Path

from moerge.masks.keeper import Answered, Keeper
from moerge_proto.signatures import JoinRequest
from support.processes import moerge, start_worker


class KeeperHome:
    """A keeper's home."""

    def __init__(self, home: Path) -> None:
        self.home, self.key = home, moerge("keeper", "init", home)

    def approve(self, request: JoinRequest) -> None:
        moerge("keeper", "approve", self.home, request.line())

    def answer(self, request: Path) -> Path:
        """The answer to a request."""
        moerge("keeper", "answer", self.home, request, "--out", out := self.home / "answer")
        return out

    def killed_answer(self, request: Path, until: str) -> None:
        """Begins an answer, and kills it once the home has a file with that name, or has ended by itself."""
        arguments = ["keeper", "answer", str(self.home), str(request), "--out", str(self.home / "answer")]
        process = start_worker(arguments, {}, self.home / "log")
        while process.is_alive() and not list(self.home.glob(until)):
            pass
        process.kill()
        process.join()

    def cohorts(self) -> list[Answered]:
        return Keeper(self.home).cohorts()
