"""The models of a comparison: the seed, experts and versions."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from moerge.errors import MoergeError
from moerge.files import file_sha256
from moerge.memory.machine import free_for
from moerge.memory.needs import Need
from moerge.memory.room import require_room
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import dense_folder
from moerge.models.side_files import chat_template
from moerge.models.sources import checkpoint_folder
from moerge.models.stored import StoredTensors
from moerge_proto.digests import digest_of

SEED = "seed"
Role = Literal["seed", "expert", "version"]
Precision = Literal["float32", "bfloat16"]
_SIZES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class Model:
    """A model in a folder. `role`: its place in the comparison."""

    name: str
    role: Role
    folder: Path

    def need(self, precision: Precision | None, device: str) -> Need:
        """The memory of its weights; by default in the number format of its files."""
        specs = StoredTensors(self.folder).specs.values()
        stored = sum(spec.bytes for spec in specs)
        numbers = sum(spec.bytes // spec.dtype.itemsize for spec in specs)
        weights = stored if precision is None else _SIZES[precision] * numbers
        return Need(f"the benchmark of {self.name}", {"weights": weights}, gpu=device == "cuda")

    @property
    def identity(self) -> str:
        """A digest of its config, and of names, sizes and times of its weights; weights themselves aren't read."""
        weights = sorted(self.folder.glob("*.safetensors"))
        files = [f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in weights]
        return digest_of({"config": file_sha256(self.folder / "config.json"), "weights": [*files]})


def model(name: str, role: Role, place: str, adapters: Path) -> Model:
    """The model of a folder or hub id; an adapter is merged with its base in `adapters`.

    Raises:
        CheckpointError: there is no such model.
    """
    files = DenseFiles(checkpoint_folder(place))
    return Model(name, role, dense_folder(files, adapters / name) if files.is_adapter else files.folder)


def require_models(models: Sequence[Model], precision: Precision | None, device: str, *, chat: bool) -> None:
    """Requires that each model can be loaded, and has a chat template if questions are put through it."""
    free = free_for(device)
    for item in models:
        if chat and not chat_template(DenseFiles(item.folder)):
            todo = "leave `chat` out, or use a model with one"
            raise MoergeError("has no chat template", where=str(item.folder), todo=todo)
        require_room(item.need(precision, device), free, ["`precision` bfloat16", "a larger machine"])
