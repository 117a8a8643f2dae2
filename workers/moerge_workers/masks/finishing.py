"""Masked router contributions."""

from pathlib import Path

from moerge.errors import MoergeError
from moerge.masks.files import write_masked
from moerge.statistics.passes import RouterPass
from moerge_proto.statistics_file import Split
from moerge_workers.computing.finishing import Finishing
from moerge_workers.masks.seeds import new_seeds
from moerge_workers.policy import Masks


class Masking(Finishing):
    """A mask of each keeper in every contribution of the statistics split."""

    is_plain = False

    def __init__(self, masks: Masks) -> None:
        self.keepers = masks.keepers

    def of(self, split: Split) -> Finishing:
        return Finishing() if split == "tuning" else self

    def write(self, exact: Path, path: Path, work: RouterPass) -> None:
        write_masked(exact, path, new_seeds(path, self.keepers))
        exact.unlink()

    def without_key(self, home: Path) -> str:
        todo = "run: moerge worker init, and send its request to the operators of coordinator and keepers"
        raise MoergeError("masks need your key; there is none", where=str(home), todo=todo)
