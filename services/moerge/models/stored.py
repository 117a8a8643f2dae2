"""Safetensors weights as stored, read tensor by tensor."""

import json
import mmap
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
_PIECE = 2**20  # elements
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

    Reads only headers, until a tensor is requested. Only this tensor is then mapped, because systems count a private
    mapping as memory: they refuse one that is larger than theirs.

    Raises:
        CheckpointError: a file or tensor is missing, damaged or of an unsupported dtype; names it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.specs: dict[str, TensorSpec] = {}
        self._starts: dict[str, int] = {}  # of the tensors in their files
        self._header_bytes = 0
        for file in [path] if path.is_file() else _weight_files(path):
            self._read_header(file)

    def _read_header(self, file: Path) -> None:
        try:
            header = _plain_header(file)
            self._header_bytes += len(header)
            if self._header_bytes > _MAX_HEADER_BYTES:
                raise CheckpointError(f"its headers have more than {_MAX_HEADER_BYTES} bytes", where=str(file))
            with safe_open(file, framework="np") as opened:  # "pt" would map the whole file
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
            places = json.loads(header)
            self._starts |= {name: 8 + len(header) + places[name]["data_offsets"][0] for name in names}
        except SafetensorError as error:
            raise CheckpointError(f"not a valid safetensors file: {error}", where=str(file)) from error

    def tensor(self, name: str) -> Tensor:
        """One tensor, as stored.

        Raises:
            CheckpointError: there is no tensor of that name, or the file has become shorter.
        """
        spec = self._spec(name)
        if not spec.bytes:
            return torch.empty(spec.shape, dtype=spec.dtype)
        start = self._starts[name]
        inside = start % mmap.ALLOCATIONGRANULARITY
        with spec.file.open("rb") as file:
            try:
                mapped = mmap.mmap(file.fileno(), inside + spec.bytes, access=mmap.ACCESS_COPY, offset=start - inside)
            except ValueError as error:
                raise _truncated(spec, name) from error
        return torch.frombuffer(mapped, dtype=spec.dtype, offset=inside).reshape(spec.shape)

    def copy(self, name: str, out: Tensor) -> None:
        """Reads one tensor into `out`, contiguous and of its shape, in pieces instead of a mapping.

        Raises:
            CheckpointError: as in `tensor`.
        """
        spec = self._spec(name)
        with spec.file.open("rb", buffering=0) as file:
            file.seek(self._starts[name])
            for part in out.view(-1).split(_PIECE):
                piece = torch.empty(len(part), dtype=spec.dtype)
                if file.readinto(piece.view(torch.uint8).numpy().data) < piece.nbytes:
                    raise _truncated(spec, name)
                part.copy_(piece)

    def _spec(self, name: str) -> TensorSpec:
        spec = self.specs.get(name)
        if spec is None:
            raise CheckpointError("tensor not found", where=f"{self.path}: {name}")
        return spec


def _truncated(spec: TensorSpec, name: str) -> CheckpointError:
    return CheckpointError("the file was truncated", where=f"{spec.file}: {name}")


def _plain_header(file: Path) -> bytes:
    """The header, without its length. Refuses duplicate keys, because readers differ in which one they use."""

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
        header = opened.read(length)
    try:
        json.loads(header, object_pairs_hook=distinct)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"its header is not JSON: {error}", where=str(file)) from error
    return header


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
