"""PEFT adapters (LoRA, rsLoRA, DoRA): low-rank changes of a base's tensors, and tensors saved whole."""

import math
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from torch import Tensor

from moerge.errors import CheckpointError, IncompatibleExpertError
from moerge.models.adapter_settings import AdapterSettings
from moerge.models.families.family import EMBEDDING, HEAD
from moerge.models.quantised import config_method, named_method, unquantised_name
from moerge.models.sources import ADAPTER_CONFIG as CONFIG
from moerge.models.sources import BASE, WANTED, hub_snapshot, is_hub_snapshot
from moerge.models.stored import INDEX, NOTHING_REMOTE, SINGLE, StoredTensors, TensorSpec
from moerge.models.wrappers import Part, part_of, text_name
from moerge.threads import one_thread
from moerge_proto.ranges import Ranges

WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model."
_WRAPPED = re.compile(r"\.(base_layer|modules_to_save)(?=\.)")
_REPLACED = ".original_module."
"""In names of tensors that PEFT saves beside their replacements after resizing the embedding."""
_NAME_IT = "name the base as BASE+ADAPTER, both folders or hub ids, or correct this field"
_LORA = re.compile(r"(?P<module>.*)\.(?P<part>lora_(A|B|embedding_A|embedding_B|magnitude_vector))(\.weight)?")


@dataclass(frozen=True)
class Change:
    """The change of one tensor of the base; the names are those in the adapter's file.

    Attributes:
        module: the changed module, as the adapter's settings name it.
        whole: the tensor that replaces it.
        down: A, [r, in]; of an embedding [r, V].
        up: B, [out, r]; of an embedding [H, r].
        scale: factor of B A.
        magnitude: DoRA's norms of the rows, [out].
    """

    module: str = ""
    whole: str | None = None
    down: str | None = None
    up: str | None = None
    scale: float = 1.0
    magnitude: str | None = None


def is_adapter(path: Path) -> bool:
    """Tell whether a folder holds an adapter; CheckpointError if it also holds a whole model."""
    if not (path / CONFIG).is_file():
        return False
    for name in (SINGLE, INDEX):
        if (path / name).is_file():
            todo = f"remove {CONFIG} if {name} is the merged model, or keep the adapter in a folder of its own"
            raise CheckpointError(f"the folder has an adapter and a whole model ({name})", where=str(path), todo=todo)
    return True


def file_of(folder: Path, name: str) -> Path:
    """The path of a small file of a dense checkpoint; it may be missing.

    An adapter has its base's files, and its own tokenizer's if it has one.
    """
    if not is_adapter(folder):
        return folder / name
    if name == "config.json" or (name == "generation_config.json" and not (folder / name).is_file()):
        return base_of(folder) / name
    return (folder if name == "generation_config.json" else tokenizer_folder(folder)) / name


def tokenizer_folder(folder: Path) -> Path:
    """The folder of a dense checkpoint's tokenizer: for an adapter without one, its base's."""
    has_tokenizer = any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model"))
    return folder if has_tokenizer or not is_adapter(folder) else base_of(folder)


def base_of(folder: Path) -> Path:
    """The folder of an adapter's base; CheckpointError if it is unnamed, missing or an adapter itself.

    An adapter of the hub may not name a folder, because its base's weights are published.

    Raises:
        IncompatibleExpertError: the base is quantised. It isn't downloaded.
    """
    where, name = f"{folder / CONFIG}: {BASE}", base_name(folder)
    if method := quantised_by(folder):
        problem = f"the adapter's base {name!r} is quantised by {method}; expected a base in full precision"
        todo = "name that before the adapter, as BASE+ADAPTER, both folders or hub ids"
        if whole := unquantised_name(name):
            todo = f"{todo}; the hub may have it as {whole}"
        raise IncompatibleExpertError(problem, where=where, todo=todo)
    try:
        result = _local_base(folder) or _from_hub(_hub_source(folder))
    except CheckpointError as error:
        raise CheckpointError(f"no base model {name!r}: {error.what}", where=where, todo=_NAME_IT) from error
    if is_adapter(result):
        todo = "merge the base's adapter first, and name the merged model there"
        raise CheckpointError(f"the base {name!r} is an adapter itself", where=where, todo=todo)
    return result


def quantised_by(folder: Path) -> str | None:
    """The method that quantised an adapter's base, by its name on the hub or its config.json; None: none.

    The weights of a base of the hub are not downloaded for that. It may be missing.
    """
    if (place := _local_base(folder)) is not None:
        return config_method(place / "config.json")
    if method := named_method(base_name(folder)):
        return method
    try:
        return config_method(_from_hub(_hub_source(folder), ("config.json",)) / "config.json")
    except CheckpointError:
        return None


def base_name(folder: Path) -> str:
    """The name of an adapter's base in its settings; CheckpointError without one."""
    name = AdapterSettings.of(folder).get(BASE)
    if not name or not isinstance(name, str):
        where = f"{folder / CONFIG}: {BASE}"
        raise CheckpointError("the adapter names no base model", where=where, todo=_NAME_IT)
    return name


def _local_base(folder: Path) -> Path | None:
    name = base_name(folder)
    places = [] if is_hub_snapshot(folder) else [Path(name), folder / name]
    return next((place for place in places if os.path.isdir(place)), None)  # false for impossible names


def _hub_source(folder: Path) -> str:
    revision = AdapterSettings.of(folder).get("revision")
    return f"{base_name(folder)}@{revision}" if revision else base_name(folder)


@cache
def _from_hub(source: str, files: tuple[str, ...] = WANTED) -> Path:
    """The same snapshot during the whole run, even if the hub's changes."""
    return hub_snapshot(source, files)


class Adapter:
    """The base's tensors with an adapter's changes.

    A tensor is computed in float64 on one thread and rounded once, to the base's dtype: W + s B A, with DoRA its rows
    scaled to the norms m. s is alpha / r, of rsLoRA alpha / sqrt(r) (arXiv 2106.09685, 2312.03732, 2402.09353).
    `remote` has the base's weights that aren't in its folder, by file name.

    Raises:
        CheckpointError: a kind of adapter or a module is unknown, or a shape isn't the base's.
    """

    def __init__(self, folder: Path, remote: Mapping[str, Ranges] = NOTHING_REMOTE) -> None:
        self._folder, self._settings = folder, AdapterSettings.of(folder)
        self._settings.require_supported()
        if not (folder / WEIGHTS).is_file():
            todo = f"save the adapter again, with safetensors: model.save_pretrained(FOLDER) writes {WEIGHTS}"
            raise CheckpointError("not found", where=str(folder / WEIGHTS), todo=todo)
        self._base, self._parts = StoredTensors(base_of(folder), remote), StoredTensors(folder / WEIGHTS)
        self.specs, self.parts = dict(self._base.specs), dict(self._base.parts)
        self.files = [*self._base.files, *self._parts.files]
        self._tied = HEAD not in self.specs
        self._changes = self._read_changes()
        self._untie()
        for name, change in self._changes.items():
            self.specs[name] = self._changed(name, change)

    @property
    def changed(self) -> Collection[str]:
        """The names of the tensors that differ from the base's."""
        return self._changes.keys()

    @property
    def config(self) -> dict[str, object]:
        """The fields of config.json that differ from the base's."""
        fields = dict[str, object]()
        if (
            EMBEDDING in self._changes
            and (rows := self.specs[EMBEDDING].shape[0]) != self._base.specs[EMBEDDING].shape[0]
        ):
            fields["vocab_size"] = rows
        if self._tied and HEAD in self.specs:
            fields["tie_word_embeddings"] = False
        return fields

    def tensor(self, name: str) -> Tensor:
        change = self._changes.get(name)
        if change is None:
            return self._base.tensor(self._source(name) if name in self.specs else name)
        dtype = self.specs[name].dtype
        tensor = self._parts.tensor(change.whole) if change.whole else self._base.tensor(self._source(name))
        if change.down is None or change.up is None:
            return tensor.to(dtype)
        down, up = self._parts.tensor(change.down).double(), self._parts.tensor(change.up).double()
        with one_thread():
            weight = (up @ down).mul_(change.scale)  # one float64 matrix at a time
            weight = (weight.T if "lora_embedding" in change.down else weight).add_(tensor)
            if change.magnitude is not None:
                norm = weight.norm(dim=1)
                weight *= (self._parts.tensor(change.magnitude).double().flatten() / norm)[:, None]
            return weight.to(dtype)

    def copy(self, name: str, out: Tensor) -> None:
        if name not in self._changes and name in self.specs:
            self._base.copy(self._source(name), out)
        else:
            out.copy_(self.tensor(name))

    def require_unchanged(self) -> None:
        self._base.require_unchanged()
        self._parts.require_unchanged()

    def _source(self, name: str) -> str:
        """The base's tensor under a name: a tied head is the embedding."""
        return EMBEDDING if name == HEAD and self._tied else name

    def _read_changes(self) -> dict[str, Change]:
        changes = dict[str, Change]()
        for key in self._parts.specs:
            if _REPLACED in key:
                continue
            module, name, part = self._target(key)
            if (kind := part_of(name)) is not None:
                parameters = math.prod(self._parts.specs[key].shape)
                self.parts[kind] = self.parts.get(kind, Part()).plus(parameters)
                continue
            change = replace(changes.get(name, Change()), module=module)
            if part is None:
                change = replace(change, whole=key)
            elif part.endswith("magnitude_vector"):
                change = replace(change, magnitude=key)
            elif part.endswith("A"):
                change = replace(change, down=key, scale=self._settings.scale(module))
            else:
                change = replace(change, up=key)
            changes[name] = change
        if not changes:
            raise self._error(
                "the file has no tensors of the text model" if self.parts else "the file has no tensors", ""
            )
        self._require_saved_modules()
        return changes

    def _target(self, key: str) -> tuple[str, str, str | None]:
        """The module and the base's tensor that `key` changes, and the part of LoRA; None for a whole tensor."""
        if not key.startswith(_PREFIX):
            raise self._error(f"expected a name that starts with {_PREFIX}", key)
        name = key.removeprefix(_PREFIX)
        match = _LORA.fullmatch(name)
        changed = _WRAPPED.sub("", name) if match is None else f"{match['module']}.weight"
        target = text_name(changed)
        known = self._base.specs.keys() | ({HEAD} if EMBEDDING in self._base.specs else set())
        if part_of(target) is None and target not in known:
            raise self._error(f"the base {self._base.path} has no tensor {target}", key)
        return changed.removesuffix(".weight"), target, match["part"] if match else None

    def _require_saved_modules(self) -> None:
        whole = [key for key in self._parts.specs if _REPLACED not in key and _LORA.fullmatch(key) is None]
        names = [f".{_WRAPPED.sub('', key)}" for key in whole]
        for module in self._settings.saved:
            if not any(f".{module}." in name for name in names):
                raise self._error(f"modules_to_save has {module!r}, but the file has no tensor of it", "")

    def _untie(self) -> None:
        """Unties a tied head if it or the embedding changes, because PEFT trains them apart.

        PEFT loads a whole embedding that is no saved module into both, so the head stays tied to that.
        """
        changed = [name for name in (EMBEDDING, HEAD) if name in self._changes]
        if not self._tied or not changed or (changed == [EMBEDDING] and self._replaces(EMBEDDING)):
            return
        if len(changed) == 1 and self._settings.get("ensure_weight_tying"):
            todo = "save the adapter again with a newer PEFT, which writes both tensors"
            raise self._error(f"ensure_weight_tying is true, but the file has only {changed[0]}", "", todo)
        self.specs[HEAD] = self._base.specs[EMBEDDING]

    def _replaces(self, name: str) -> bool:
        change, module = self._changes[name], name.rpartition(".")[0]
        copied = any(module.endswith(item) for item in self._settings.saved)
        return change.whole is not None and change.down is None and not copied

    def _changed(self, name: str, change: Change) -> TensorSpec:
        base = self._base.specs[self._source(name)]
        spec = base
        if change.whole:
            spec = replace(self._parts.specs[change.whole], dtype=base.dtype)
            self._require_replacement(name, change.whole, base.shape)
        if change.down and change.up:
            self._require_factors(name, change.down, change.up, spec.shape)
            self._require_magnitude(name, change.down, change.magnitude, spec.shape)
        elif change.down or change.up or change.magnitude:
            missing = "lora_A" if change.down is None else "lora_B"
            raise self._error(f"{missing} is missing", change.up or change.down or name)
        return spec

    def _require_replacement(self, name: str, key: str, base: tuple[int, ...]) -> None:
        shape = self._parts.specs[key].shape
        is_resized = name in (EMBEDDING, HEAD) and shape[1:] == base[1:]
        if shape != base and not is_resized:
            raise self._error(f"expected shape {list(base)}, found {list(shape)}", key)

    def _require_factors(self, name: str, down: str, up: str, shape: tuple[int, ...]) -> None:
        rank, is_embedding = self._settings.rank(self._changes[name].module), "lora_embedding" in down
        if len(shape) != 2 or is_embedding != (name == EMBEDDING):
            raise self._error(f"{name} is not a linear module", down)
        inputs, outputs = shape if is_embedding else reversed(shape)
        self._require_shape(down, (rank, inputs))
        self._require_shape(up, (outputs, rank))

    def _require_magnitude(self, name: str, down: str, magnitude: str | None, shape: tuple[int, ...]) -> None:
        dora = bool(self._settings.get("use_dora"))
        if dora and name == EMBEDDING:
            raise self._error("DoRA of an embedding is not supported", down, "merge the adapter with PEFT")
        if dora != (magnitude is not None):
            state = "has a" if magnitude else "lacks the"
            raise self._error(f"use_dora is {str(dora).lower()}, but {name} {state} magnitude vector", down)
        if magnitude is not None and math.prod(self._parts.specs[magnitude].shape) != shape[0]:
            self._require_shape(magnitude, shape[:1])

    def _require_shape(self, key: str, shape: tuple[int, ...]) -> None:
        result = self._parts.specs[key].shape
        if result != shape:
            raise self._error(f"expected shape {list(shape)}, found {list(result)}", key)

    def _error(self, what: str, key: str, todo: str = "") -> CheckpointError:
        todo = todo or "name the base that the adapter was trained on (BASE+ADAPTER), or save the adapter again"
        return CheckpointError(what, where=f"{self._folder / WEIGHTS}{f': {key}' if key else ''}", todo=todo)
