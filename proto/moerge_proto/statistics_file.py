"""The statistics file: what a worker uploads, in one canonical safetensors layout.

    layers.{l}.gram   int64 [H(H+1)/2]   upper triangle of sum u^T u, row-major, times 2**exponents[l]
    layers.{l}.cross  int64 [H]          sum of u, times 2**exponents[l]

u is the feature divided by the gain of the norm that made it. Layers stand in order; the one metadata key is
`manifest`, canonical JSON. Equal statistics give equal bytes, and a file that differs from what this module would
write for its manifest is refused, so a header can't lie.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Annotated, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError, field_validator, model_validator

from moerge_proto.digests import Digest, Name, canonical_json
from moerge_proto.messages import Message

MAX_HEADER_BYTES = 64 * 2**20
MAX_TOKENS = 2**36
"""The exponents leave room for this many tokens, in one contribution and in the sum of all (see `exponent`)."""

Int64 = NDArray[np.int64]


class StatisticsFileError(ValueError):
    """The bytes are not a statistics file. `field` names the part."""

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(f"{field}: {detail}")
        self.field = field
        self.detail = detail


class StatisticsSettings(Message):
    """How documents became features: at most `tokens_per_document` tokens of each (None: all), in windows of `context`.

    `batch_tokens` bounds a micro-batch. All three belong to the shard plan, because they change the integers.
    """

    tokens_per_document: int | None = Field(default=None, ge=1, le=MAX_TOKENS)
    context: int = Field(default=512, ge=1, le=2**16)
    batch_tokens: int = Field(default=4096, ge=1, le=2**16)


class Manifest(Message):
    """What the sums are sums of."""

    format: Literal[1] = 1
    kind: Literal["router"] = "router"
    owner: Name
    expert: Digest
    domain: Name
    trunk: Digest
    split: Literal["statistics"] = "statistics"
    settings: StatisticsSettings
    hidden_size: int = Field(ge=1, le=2**20)
    layers: int = Field(ge=1, le=2**12)
    exponents: list[Annotated[int, Field(ge=0, le=62)]]
    tokens: int = Field(ge=1, le=MAX_TOKENS)
    documents: int = Field(ge=1)
    shards: list[Digest] = Field(min_length=1)

    @field_validator("shards")
    @classmethod
    def _sorted_and_distinct(cls, shards: list[str]) -> list[str]:
        if shards != sorted(set(shards)):
            raise ValueError("shard names must be sorted and distinct")
        return shards

    @model_validator(mode="after")
    def _consistent(self) -> "Manifest":
        if len(self.exponents) != self.layers:
            raise ValueError(f"exponents: {len(self.exponents)} given for {self.layers} layers")
        if not len(self.shards) <= self.documents <= self.tokens:
            raise ValueError("counts must satisfy shards <= documents <= tokens")
        return self


def exponent(hidden_size: int) -> int:
    """Fractional bits f for features with ||u||^2 <= H: sums over 2**36 tokens stay below 2**62."""
    return min(16, 62 - 36 - (hidden_size - 1).bit_length())


def gram_length(hidden_size: int) -> int:
    """Entries in the upper triangle of an H x H matrix."""
    return hidden_size * (hidden_size + 1) // 2


def _header(manifest: Manifest) -> bytes:
    tensors: dict[str, object] = {"__metadata__": {"manifest": canonical_json(manifest.model_dump()).decode()}}
    offset = 0
    for layer in range(manifest.layers):
        for part, length in (("gram", gram_length(manifest.hidden_size)), ("cross", manifest.hidden_size)):
            end = offset + 8 * length
            tensors[f"layers.{layer}.{part}"] = {"dtype": "I64", "shape": [length], "data_offsets": [offset, end]}
            offset = end
    body = json.dumps(tensors, separators=(",", ":"), ensure_ascii=False).encode()
    body += b" " * (-len(body) % 8)
    return len(body).to_bytes(8, "little") + body


def file_size(manifest: Manifest) -> int:
    """Bytes of the whole file."""
    return len(_header(manifest)) + 8 * manifest.layers * (gram_length(manifest.hidden_size) + manifest.hidden_size)


def write(out: BinaryIO, manifest: Manifest, layers: Iterable[tuple[Int64, Int64]]) -> str:
    """Writes the file to `out` layer by layer and returns its SHA-256. `layers` yields (gram, cross), all L of them.

    Raises:
        StatisticsFileError: an array's dtype or shape, or the number of layers, contradicts the manifest.
    """
    digest = hashlib.sha256()

    def emit(data: bytes) -> None:
        digest.update(data)
        out.write(data)

    emit(_header(manifest))
    count = 0
    for count, (gram, cross) in enumerate(layers, start=1):
        for part, array, length in (
            ("gram", gram, gram_length(manifest.hidden_size)),
            ("cross", cross, manifest.hidden_size),
        ):
            if array.dtype != np.int64 or array.shape != (length,):
                found = f"{array.dtype} {list(array.shape)}"
                raise StatisticsFileError(f"layers.{count - 1}.{part}", f"expected int64 [{length}], found {found}")
            emit(array.astype("<i8", copy=False).tobytes())
    if count != manifest.layers:
        raise StatisticsFileError("layers", f"expected {manifest.layers}, found {count}")
    return digest.hexdigest()


class StatisticsFile:
    """A statistics file opened for reading, one layer in memory at a time.

    Raises:
        StatisticsFileError: on opening, when header or size are not exactly what the manifest demands.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        try:
            self.manifest = self._read_manifest()
            header = _header(self.manifest)
            self._file.seek(0)
            if self._file.read(len(header)) != header:
                raise StatisticsFileError("header", "not in canonical form for its manifest")
            self._data = len(header)
            size, expected = os.fstat(self._file.fileno()).st_size, file_size(self.manifest)
            if size != expected:
                raise StatisticsFileError("body", f"expected {expected} bytes, found {size}")
        except BaseException:
            self._file.close()
            raise

    def _read_manifest(self) -> Manifest:
        length = int.from_bytes(self._file.read(8), "little")
        if not 2 <= length <= MAX_HEADER_BYTES:
            raise StatisticsFileError("header", f"length {length} is not between 2 and {MAX_HEADER_BYTES}")
        raw = self._file.read(length)
        if len(raw) != length:
            raise StatisticsFileError("header", f"expected {length} bytes, found {len(raw)}")
        try:
            manifest = json.loads(raw)["__metadata__"]["manifest"]
            return Manifest.model_validate_json(manifest)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(["manifest", *map(str, first["loc"])])
            raise StatisticsFileError(field, first["msg"]) from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise StatisticsFileError("header", "no manifest in its metadata") from error

    def layer(self, layer: int) -> tuple[Int64, Int64]:
        """(gram [H(H+1)/2], cross [H]) of one layer, int64."""
        length, hidden = gram_length(self.manifest.hidden_size), self.manifest.hidden_size
        self._file.seek(self._data + 8 * layer * (length + hidden))
        block = np.frombuffer(self._file.read(8 * (length + hidden)), dtype="<i8").astype(np.int64, copy=False)
        return block[:length], block[length:]

    def layers(self) -> Iterator[tuple[Int64, Int64]]:
        """All layers in order."""
        return (self.layer(layer) for layer in range(self.manifest.layers))

    def __enter__(self) -> "StatisticsFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
