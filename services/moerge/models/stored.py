"""Safetensors weights as stored, read tensor by tensor."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from moerge.errors import CheckpointError
from moerge.files import require_small
from moerge.models.quantised import unsupported

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"

BUFFERS = (
    *("rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached"),
    *("attn.bias", "attn.masked_bias", "position_ids"),
)
"""Ends of names of buffers in older files, which are computed from the config: never read."""

_MAX_HEADER_BYTES = 2**24  # of all files; a tensor needs about 120
_MAX_INDEX_BYTES = 2**24
DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
"""Number formats by their names in safetensors files."""


@dataclass(frozen=True)
class TensorSpec:
    """A tensor's file, dtype and shape."""

    file: Path
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        return self.dtype.itemsize * torch.Size(self.shape).numel()


class StoredTensors:
    """The safetensors weights of a folder, single or sharded, or of one file of any name, without BUFFERS.

    Reads only headers, until a tensor is requested.

    Raises:
        CheckpointError: a file or tensor is missing, damaged or of an unsupported dtype; names it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.specs: dict[str, TensorSpec] = {}
        self._header_bytes = 0
        for file in [path] if path.is_file() else _weight_files(path):
            self._read_header(file)

    def _read_header(self, file: Path) -> None:
        try:
            self._header_bytes += _require_plain_header(file)
            if self._header_bytes > _MAX_HEADER_BYTES:
                raise CheckpointError(f"its headers have more than {_MAX_HEADER_BYTES} bytes", where=str(file))
            with safe_open(file, framework="pt") as opened:
                names = [name for name in opened.keys() if not name.endswith(BUFFERS)]  # noqa: SIM118  # not iterable
                for name in names:
                    piece = opened.get_slice(name)
                    dtype = DTYPES.get(piece.get_dtype())
                    if dtype is None:
                        raise unsupported(piece.get_dtype(), DTYPES, f"{file}: {name}", names)
                    if name in self.specs:
                        found = f"also in {self.specs[name].file.name}"
                        raise CheckpointError(found, where=f"{file}: {name}", todo="keep each tensor in one file")
                    self.specs[name] = TensorSpec(file, tuple(piece.get_shape()), dtype)
        except SafetensorError as error:
            raise CheckpointError(f"not a valid safetensors file: {error}", where=str(file)) from error

    def tensor(self, name: str) -> Tensor:
        """One tensor, as stored.

        Raises:
            CheckpointError: there is no tensor of that name.
        """
        spec = self.specs.get(name)
        if spec is None:
            raise CheckpointError("tensor not found", where=f"{self.path}: {name}")
        with safe_open(spec.file, framework="pt") as opened:
            tensor: Tensor = opened.get_tensor(name)
            return tensor


def _require_plain_header(file: Path) -> int:
    """The header's length. Refuses duplicate keys, because readers differ in which one they use."""

    def distinct(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice = next(key for n, (key, _) in enumerate(pairs) if key in dict(pairs[:n]))
            raise CheckpointError("duplicate key in the header", where=f"{file}: {twice}")
        return found

    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if length > _MAX_HEADER_BYTES:
            raise CheckpointError(
                f"expected a header of at most {_MAX_HEADER_BYTES} bytes, found {length}", where=str(file)
            )
        try:
            json.loads(opened.read(length), object_pairs_hook=distinct)
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"its header is not JSON: {error}", where=str(file)) from error
    return length


_OTHER = ("pytorch_model*.bin", "*.bin", "*.gguf", "*.pth", "*.pt")
"""Weights in other formats."""


def _weight_files(folder: Path) -> list[Path]:
    if (folder / SINGLE).is_file():  # like transformers, ignore a stale index beside it
        return [folder / SINGLE]
    if (folder / INDEX).is_file():
        require_small(folder / INDEX, _MAX_INDEX_BYTES)
        try:
            names = {str(name) for name in json.loads((folder / INDEX).read_text("utf-8"))["weight_map"].values()}
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            raise CheckpointError("its weight_map is missing or invalid", where=str(folder / INDEX)) from error
        for name in names:
            if Path(name).name != name:
                raise CheckpointError(f"names a file outside the folder: {name!r}", where=str(folder / INDEX))
            if not (folder / name).is_file():
                raise CheckpointError(f"names {name}, which is missing", where=str(folder / INDEX))
        return [folder / name for name in sorted(names)]
    other = next((each.name for kind in _OTHER for each in sorted(folder.glob(kind))), None)
    found = "no safetensors weights" + (f", only {other}" if other else "")
    todo = f"name a folder with {SINGLE} or {INDEX}"
    if other and other.endswith(".bin"):
        todo = (
            "convert the PyTorch .bin files where you trust them; they are pickles, and moerge never opens them: "
            'python -c "from transformers import AutoModelForCausalLM, AutoTokenizer; '
            f"[kind.from_pretrained('{folder}').save_pretrained('NEW_FOLDER') "
            'for kind in (AutoModelForCausalLM, AutoTokenizer)]"'
        )
    elif other:
        todo += ", as the model's authors publish for transformers; moerge reads no other format"
    raise CheckpointError(found, where=str(folder), todo=todo)
