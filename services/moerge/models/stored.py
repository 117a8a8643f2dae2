"""Safetensors weights as stored, read tensor by tensor."""

import json
import math
import mmap
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import MappingProxyType

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from moerge.errors import CheckpointError
from moerge.files import require_small
from moerge.models.foreign import require_content, weights_elsewhere
from moerge.models.quantised import unsupported
from moerge.models.wrappers import Part, part_of, text_name
from moerge_proto.ranges import LocalFile, Ranges, read_bytes

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"

BUFFERS = (
    *("rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached"),
    *("attn.bias", "attn.masked_bias", "position_ids"),
)
"""Ends of names of buffers in older files; the config determines them, so they are never read."""
_MAX_HEADER_BYTES = 2**24  # of all files; a tensor needs about 120
_MAX_INDEX_BYTES = 2**24
_PIECE = 2**20  # elements
NOTHING_REMOTE: Mapping[str, Ranges] = MappingProxyType({})
DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


@dataclass(frozen=True)
class TensorSpec:
    file: Path
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        return self.dtype.itemsize * torch.Size(self.shape).numel()


class StoredTensors:
    """The safetensors weights of a folder, single or sharded, or of one file of any name, without BUFFERS.

    A wrapper's tensors are those of its text model, by its names; `parts` are the others, by kind.

    Opening reads only headers. A requested tensor of a local file is mapped alone, because systems refuse a private
    mapping that is larger than memory. `remote` has files that aren't in the folder, by name; their bytes are read.

    Raises:
        CheckpointError: a file or tensor is missing, damaged or of an unsupported dtype.
    """

    def __init__(self, path: Path, remote: Mapping[str, Ranges] = NOTHING_REMOTE) -> None:
        self.path = path
        self.specs: dict[str, TensorSpec] = {}
        self.parts: dict[str, Part] = {}
        self._remote = remote
        self._starts: dict[str, int] = {}  # of the tensors in their files
        self._marks: dict[Path, tuple[int, int]] = {}  # size and time of local files
        self._header_bytes = 0
        self.files = [path] if path.is_file() or path.name in remote else _weight_files(path, remote)
        for file in self.files:
            self._read_header(file)

    def _read_header(self, file: Path) -> None:
        source = self._remote.get(file.name)
        if source is None:
            self._marks[file] = _mark(file)
        try:
            header = _plain_header(file, source)
            self._header_bytes += len(header)
            if self._header_bytes > _MAX_HEADER_BYTES:
                raise CheckpointError(f"its headers have more than {_MAX_HEADER_BYTES} bytes", where=str(file))
            with (
                _skeleton(file, source, header) as readable,
                safe_open(readable, framework="np") as opened,
            ):  # "pt" would map the whole file
                stored = [name for name in opened.keys() if not name.endswith(BUFFERS)]  # noqa: SIM118  # not iterable
                names = dict[str, str]()
                for key in stored:
                    piece, name = opened.get_slice(key), text_name(key)
                    if (kind := part_of(key)) is not None:
                        parameters = math.prod(piece.get_shape())
                        self.parts[kind] = self.parts.get(kind, Part()).plus(parameters)
                        continue
                    dtype = DTYPES.get(piece.get_dtype())
                    if dtype is None:
                        raise unsupported(piece.get_dtype(), DTYPES, f"{file}: {key}", stored)
                    if name in self.specs:
                        problem = f"also in {self.specs[name].file.name}"
                        raise CheckpointError(problem, where=f"{file}: {key}", todo="keep each tensor in one file")
                    names[name] = key
                    self.specs[name] = TensorSpec(file, tuple(piece.get_shape()), dtype)
            places = json.loads(header)
            self._starts |= {name: 8 + len(header) + places[key]["data_offsets"][0] for name, key in names.items()}
        except SafetensorError as error:
            raise CheckpointError(f"not a valid safetensors file: {error}", where=str(file), todo=_AGAIN) from error

    def tensor(self, name: str) -> Tensor:
        """One tensor, as stored; CheckpointError if it is missing, or the file was truncated."""
        spec = self._spec(name)
        if not spec.bytes:
            return torch.empty(spec.shape, dtype=spec.dtype)
        start = self._starts[name]
        if (source := self._remote.get(spec.file.name)) is not None:
            data = torch.empty(spec.bytes, dtype=torch.uint8)
            _fill(data, source, start, spec, name)
            return data.view(spec.dtype).reshape(spec.shape)
        inside = start % mmap.ALLOCATIONGRANULARITY
        with spec.file.open("rb") as file:
            try:
                mapped = mmap.mmap(file.fileno(), inside + spec.bytes, access=mmap.ACCESS_COPY, offset=start - inside)
            except ValueError as error:
                raise _truncated(spec, name) from error
        return torch.frombuffer(mapped, dtype=spec.dtype, offset=inside).reshape(spec.shape)

    def copy(self, name: str, out: Tensor) -> None:
        """Reads one tensor into `out`, contiguous and of its shape, in pieces instead of a mapping."""
        spec, start = self._spec(name), self._starts[name]
        self._require_unchanged(spec.file)
        with _opened(spec.file, self._remote.get(spec.file.name)) as source:
            for part in out.view(-1).split(_PIECE):
                piece = torch.empty(len(part), dtype=spec.dtype)
                _fill(piece.view(torch.uint8), source, start, spec, name)
                part.copy_(piece)
                start += piece.nbytes

    def require_unchanged(self) -> None:
        for file in self._marks:
            self._require_unchanged(file)

    def _require_unchanged(self, file: Path) -> None:
        if (mark := self._marks.get(file)) is not None and mark != _mark(file):
            todo = "start again; write another model into another folder"
            raise CheckpointError("the file was replaced or changed during the work", where=str(file), todo=todo)

    def _spec(self, name: str) -> TensorSpec:
        spec = self.specs.get(name)
        if spec is None:
            raise CheckpointError("tensor not found", where=f"{self.path}: {name}")
        return spec


def _mark(file: Path) -> tuple[int, int]:
    try:
        status = file.stat()
    except FileNotFoundError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


def _fill(data: Tensor, source: Ranges, start: int, spec: TensorSpec, name: str) -> None:
    if source.read(start, data.numpy().data) < len(data):
        raise _truncated(spec, name)


def _truncated(spec: TensorSpec, name: str) -> CheckpointError:
    return CheckpointError("the file was truncated", where=f"{spec.file}: {name}")


def _opened(file: Path, source: Ranges | None) -> AbstractContextManager[Ranges]:
    return closing(LocalFile(file)) if source is None else nullcontext(source)


def _plain_header(file: Path, source: Ranges | None) -> bytes:
    """The header, without its length. Refuses duplicate keys, which readers resolve differently."""

    def distinct(pairs: list[tuple[str, object]]) -> dict[str, object]:
        result = dict(pairs)
        if len(result) < len(pairs):
            twice = next(key for n, (key, _) in enumerate(pairs) if key in dict(pairs[:n]))
            raise CheckpointError("duplicate key in the header", where=f"{file}: {twice}")
        return result

    with _opened(file, source) as opened:
        start = read_bytes(opened, 0, 8)
        require_content(file, start)
        length = int.from_bytes(start, "little")
        if length > _MAX_HEADER_BYTES:
            problem = f"not a safetensors file: expected a header of at most {_MAX_HEADER_BYTES} bytes, found {length}"
            raise CheckpointError(problem, where=str(file), todo=_AGAIN)
        header = read_bytes(opened, 8, length)
    try:
        json.loads(header, object_pairs_hook=distinct)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"its header is not JSON: {error}", where=str(file)) from error
    return header


@contextmanager
def _skeleton(file: Path, source: Ranges | None, header: bytes) -> Iterator[Path]:
    """The local file itself, or a sparse file with a remote one's size and header, for the checks of safetensors."""
    if source is None:
        yield file
        return
    with NamedTemporaryFile() as sparse:
        sparse.write(len(header).to_bytes(8, "little") + header)
        sparse.truncate(source.size)
        yield Path(sparse.name)


_AGAIN = "the file may be incomplete: download it or save the model again"


def _weight_files(folder: Path, remote: Mapping[str, Ranges]) -> list[Path]:
    if SINGLE in remote or (folder / SINGLE).is_file():  # like transformers, ignore a stale index beside it
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
            if name not in remote and not (folder / name).is_file():
                todo = f"add {name}, or save the model again with save_pretrained"
                raise CheckpointError(f"names {name}, which is missing", where=str(folder / INDEX), todo=todo)
        return [folder / name for name in sorted(names)]
    if shard := next((item.name for item in sorted(folder.glob("*.safetensors"))), None):
        todo = f"add the index of all shards, or name a single file {SINGLE}"
        raise CheckpointError(f"{shard} without {INDEX}", where=str(folder), todo=todo)
    other = weights_elsewhere(folder)
    problem = "no safetensors weights" + (f", only {other}" if other else "")
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
    raise CheckpointError(problem, where=str(folder), todo=todo)
