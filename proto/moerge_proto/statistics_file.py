"""The statistics file: a worker's sums, in one canonical safetensors layout.

A router contribution, under one body:

    layers.{l}.gram              int64 [H(H+1)/2]  upper triangle of sum u^T u, row-major, times 2**exponents[l]
    layers.{l}.cross             int64 [H]         sum of u, times 2**exponents[l]

u is the feature, divided by the gain of the norm before it, if any. With `before` in the settings, tokens stand behind
public text.

A sum of router contributions, which count together or not at all, has the same tensors. Its cross is [D H], domain
after domain in the manifest's order.

A body contribution, of the expert alone:

    token_counts                 int64 [V]         counts of each token, 0 below the manifest's `rare_below`
    layers.{l}.attention_input   int64 [H(H+1)/2]  upper triangle of the gram of the inputs of q, k and v; l > 0
    layers.{l}.attention_output  int64 [A(A+1)/2]  of the inputs of the attention's output projection; A of layer l

Layers with linear attention or a convolution have grams of its projections. A layer without the second gram has A = 0.
The first layer's inputs are known vectors, one per token: their gram follows from the counts, and would show those that
are withheld.

A head contribution, of the expert alone:

    head_input                   int64 [H(H+1)/2]  upper triangle of the gram of the head's inputs

Grams of these two are also divided by the gains of their norms, and times 2**exponents[i], in the order of the tensors.
The only metadata key is `manifest`, canonical JSON. Equal statistics give equal bytes. A file is refused if it differs
from the canonical layout of its manifest.

A worker's journal of some layers is the same file with only their tensors. To open it, a caller names those layers.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, BinaryIO, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError, field_validator, model_validator

from moerge_proto.digests import Digest, Name, canonical_json
from moerge_proto.messages import Message, plainly
from moerge_proto.ranges import Source, opened, read_bytes

MAX_SHARDS = 100_000
"""In one contribution."""
MAX_HEADER_BYTES = 8 * 2**20
"""Enough for that many shards and 4096 layers."""
MAX_TOKENS = 2**36
"""The exponents leave room for this many tokens, in one contribution and in the sum of all (see `exponent`)."""
MAX_EXPERT_TOKENS = 2**30
"""The same, in a body or head contribution; different owners' are never added as integers."""
POOL = "aee96030ac5b2bd8fb7cb9b075b5bf616fc5b692cef0cb699e6c08a40c6116b9"
"""The SHA-256 of the library's file of public texts (`moerge.documents.pool`)."""

MAX_SUMMED = 300
"""Contributions in one sum."""
MAX_MASKED_HIDDEN, MAX_MASKED_LAYERS = 2**14, 2**10
"""Of masked sums: a keeper's answer is as large, and keepers believe what owners sign."""
Int64 = NDArray[np.int64]
Kind = Literal["router", "body", "head"]
"""A contribution's purpose: the routers under one body, merged bodies, or heads."""
Split = Literal["statistics", "tuning"]
"""The documents' use: the solve, or the choice of lambda."""


class StatisticsFileError(ValueError):
    """The bytes are not a statistics file."""

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(f"{field}: {detail}")
        self.field = field
        self.detail = detail


class TextBefore(Message):
    """Public text before an owner's own, so that routers hear less of what stood before a token.

    Attributes:
        pool: digest of the public texts, which come with the library.
        tokens: most tokens of a public text before a piece, and at most as many as the piece has; they don't count.
        piece: most tokens of a piece; both together are at most `context`.
    """

    pool: Digest = POOL
    tokens: int = Field(default=128, ge=1, le=2**15)
    piece: int = Field(default=128, ge=1, le=2**15)

    def within(self, context: int) -> Self:
        """The same with shorter lengths, if a piece and the text before it are longer than a context."""
        half = context // 2
        return self.model_copy(update={"tokens": min(self.tokens, half), "piece": min(self.piece, half)})


class Privacy(Message):
    """Noise in router sums: (`epsilon`, `delta`) differential privacy of each document, over one contribution.

    Features are whitened with the pool `public`, and a document passes the model alone. The sums are of the documents'
    mean outer products and means (`grams`). See `moerge.noise.noisy_sums`.
    """

    epsilon: float = Field(gt=0, le=100, allow_inf_nan=False)
    delta: float = Field(default=1e-6, gt=0, le=0.01)
    sums: Literal["grams"] = "grams"
    public: Digest = POOL


class StatisticsSettings(Message):
    """Settings of the features. All are part of the shard plan, because they change the integers.

    Attributes:
        tokens_per_document: most counted tokens of a document; None: all.
        context: tokens of a window.
        batch_tokens: most tokens of a micro-batch; fewer need less memory.
        precision: the model's number format; products are always float32.
        before: public text before the own, for router contributions only.
        privacy: noise of router contributions, which an owner sets in the table [privacy].
    """

    tokens_per_document: int | None = Field(default=None, ge=1, le=MAX_TOKENS)
    context: int = Field(default=512, ge=1, le=2**16)
    batch_tokens: int = Field(default=2048, ge=1, le=2**16)
    precision: Literal["float32", "bfloat16"] = "float32"
    before: TextBefore | None = None
    privacy: Privacy | None = Field(default=None, exclude_if=lambda value: value is None)

    @model_validator(mode="after")
    def _of_one_row(self) -> Self:
        if self.privacy is not None and self != self.private(self.privacy):
            raise ValueError("privacy: expected `tokens_per_document` of at most `context`, and no text before them")
        return self

    def private(self, privacy: Privacy) -> Self:
        """The same with noise: a document is one row, without text before it."""
        tokens = min(self.tokens_per_document or self.context, self.context)
        return self.model_copy(update={"tokens_per_document": tokens, "before": None, "privacy": privacy})

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.before is not None and self.before.tokens + self.before.piece > self.context:
            length = self.before.tokens + self.before.piece
            raise ValueError(f"before: `tokens` and `piece` are {length}; expected at most `context`, {self.context}")
        return self

    @property
    def batch(self) -> int:
        """Most positions of a micro-batch: `batch_tokens`, or those of one row, or of a piece behind its text."""
        row = self.context if self.before is None else self.before.tokens + self.before.piece
        return max(self.batch_tokens, row)


def _require_consistent(shards: int, documents: int, tokens: int) -> None:
    if not shards <= documents <= tokens:
        raise ValueError("counts must satisfy shards <= documents <= tokens")


class DomainCounts(Message):
    """The origin of a domain's sums, and their counts."""

    domain: Name
    owner: Name
    expert: Digest
    tokens: int = Field(ge=1, le=MAX_TOKENS)
    documents: int = Field(ge=1)
    shards: int = Field(ge=1)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _require_consistent(self.shards, self.documents, self.tokens)
        return self


class _Layout(Message):
    format: Literal[1] = 1
    settings: StatisticsSettings
    hidden_size: int = Field(ge=1, le=2**20)
    layers: int = Field(ge=1, le=2**12)
    exponents: list[Annotated[int, Field(ge=-512, le=512)]]

    @model_validator(mode="after")
    def _of_every_gram(self) -> Self:
        if len(self.exponents) != (expected := len(self.grams())):
            raise ValueError(f"exponents: expected {expected} for {self.layers} layers, got {len(self.exponents)}")
        return self

    @property
    def is_masked(self) -> bool:
        """Whether the integers have masks."""
        return False

    def by_domain(self) -> list[DomainCounts]:
        """The counts of each domain, in the order of its part of a cross."""
        raise NotImplementedError

    def grams(self) -> dict[str, int]:
        """Name of every gram -> its size, in the order of the exponents."""
        raise NotImplementedError

    def layout(self) -> list[tuple[str, int]]:
        """Name and length of every tensor, in the file's order."""
        return self.part(None)

    def part(self, layers: range | None) -> list[tuple[str, int]]:
        """The layout of some consecutive layers. None: all layers."""
        return [item for layer in layers or range(self.layers) for item in self.layer(layer)]

    def layer(self, layer: int) -> list[tuple[str, int]]:
        """The layout of a layer; tensors of no layer are the last one's."""
        raise NotImplementedError


class _Manifest(_Layout):
    """A manifest of a contribution, which has one domain."""

    owner: Name
    expert: Digest
    domain: Name
    tokens: int = Field(ge=1, le=MAX_TOKENS)
    documents: int = Field(ge=1)
    shards: list[Digest] = Field(min_length=1, max_length=MAX_SHARDS)

    @field_validator("shards")
    @classmethod
    def _sorted_and_distinct(cls, shards: list[str]) -> list[str]:
        if shards != sorted(set(shards)):
            raise ValueError("shard names must be sorted and distinct")
        return shards

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _require_consistent(len(self.shards), self.documents, self.tokens)
        return self

    @property
    def under(self) -> Digest | None:
        """The body that the sums are made under; None: they are the expert's own."""
        return None

    def by_domain(self) -> list[DomainCounts]:
        counts = self.model_dump(include={"domain", "owner", "expert", "tokens", "documents"})
        return [DomainCounts(**counts, shards=len(self.shards))]


class _RouterLayout(_Layout):
    """The layout of router sums, of all domains of the manifest."""

    def grams(self) -> dict[str, int]:
        return {f"layers.{layer}.gram": self.hidden_size for layer in range(self.layers)}

    def layer(self, layer: int) -> list[tuple[str, int]]:
        crosses = len(self.by_domain()) * self.hidden_size
        return [(f"layers.{layer}.gram", gram_length(self.hidden_size)), (f"layers.{layer}.cross", crosses)]


class RouterManifest(_RouterLayout, _Manifest):
    """The manifest of a router contribution: sums over `split` of the domain's documents, under one body.

    `keepers`: keys of those who keep its masks; sums without a mask have none (`moerge_proto.masks`).
    """

    kind: Literal["router"] = "router"
    body: Digest
    split: Split = "statistics"
    keepers: list[Digest] = Field(default_factory=list, max_length=10, exclude_if=lambda value: not value)

    @model_validator(mode="after")
    def _maskable(self) -> Self:
        if self.keepers != sorted(set(self.keepers)):
            raise ValueError("keepers: expected sorted and distinct keys")
        if self.keepers and self.split != "statistics":
            raise ValueError("keepers: expected none with the split `tuning`")
        if self.keepers and (self.hidden_size > MAX_MASKED_HIDDEN or self.layers > MAX_MASKED_LAYERS):
            raise ValueError(f"keepers: expected none with H above {MAX_MASKED_HIDDEN}, or so many layers")
        if self.keepers and self.settings.privacy is not None:
            raise ValueError("settings.privacy: expected none with keepers, because nobody can check a sum with noise")
        return self

    @property
    def under(self) -> Digest:
        return self.body

    @property
    def is_masked(self) -> bool:
        return bool(self.keepers)


class SumManifest(_RouterLayout):
    """The manifest of a sum of router contributions, whose files are `contributions`.

    `settings`: those with the largest micro-batch; `before` is the same in all.
    """

    kind: Literal["sum"] = "sum"
    body: Digest
    split: Literal["statistics"] = "statistics"
    domains: list[DomainCounts] = Field(min_length=1, max_length=MAX_SUMMED)
    contributions: list[Digest] = Field(min_length=1, max_length=MAX_SUMMED)

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        for field, names in (
            ("domains", [item.domain for item in self.domains]),
            ("contributions", self.contributions),
        ):
            if names != sorted(set(names)):
                raise ValueError(f"{field}: expected sorted and distinct names")
        return self

    @property
    def tokens(self) -> int:
        return sum(item.tokens for item in self.domains)

    @property
    def documents(self) -> int:
        return sum(item.documents for item in self.domains)

    def by_domain(self) -> list[DomainCounts]:
        return self.domains


class _ExpertManifest(_Manifest):
    """A manifest of sums over the expert's own inputs."""

    tokens: int = Field(ge=1, le=MAX_EXPERT_TOKENS)
    split: Literal["statistics"] = "statistics"

    @field_validator("settings")
    @classmethod
    def _own_text_alone(cls, settings: StatisticsSettings) -> StatisticsSettings:
        if settings.before is not None or settings.privacy is not None:
            raise ValueError("only router contributions have text before the own, or noise: leave both out")
        return settings


class HeadManifest(_ExpertManifest):
    """The manifest of a head contribution."""

    kind: Literal["head"] = "head"

    def grams(self) -> dict[str, int]:
        return {"head_input": self.hidden_size}

    def layer(self, layer: int) -> list[tuple[str, int]]:
        return [("head_input", gram_length(self.hidden_size))] if layer == self.layers - 1 else []


class BodyManifest(_ExpertManifest):
    """The manifest of a body contribution. Counts of tokens below `rare_below` are withheld.

    `attention_sizes` has each layer's width of the second gram, 0 without one.
    """

    kind: Literal["body"] = "body"
    attention_sizes: list[Annotated[int, Field(ge=0, le=2**20)]]
    vocab_size: int = Field(ge=1, le=2**30)
    rare_below: int = Field(ge=0, le=MAX_TOKENS)

    @model_validator(mode="after")
    def _of_every_layer(self) -> Self:
        if (found := len(self.attention_sizes)) != self.layers:
            raise ValueError(f"attention_sizes: expected {self.layers}, one per layer, found {found}")
        return self

    def grams(self) -> dict[str, int]:
        return body_grams(self.hidden_size, self.attention_sizes)

    def layer(self, layer: int) -> list[tuple[str, int]]:
        first = [("token_counts", self.vocab_size)]
        sizes = _layer_grams(self.hidden_size, self.attention_sizes, layer)
        grams = [(name, gram_length(size)) for name, size in sizes]
        return first + grams[1:] if layer == 0 else grams


Manifest = RouterManifest | BodyManifest | HeadManifest
"""Of a contribution."""
AnyManifest = Manifest | SumManifest
_ANY: TypeAdapter[AnyManifest] = TypeAdapter(Annotated[AnyManifest, Field(discriminator="kind")])
_CONTRIBUTION: TypeAdapter[AnyManifest] = TypeAdapter(Annotated[Manifest, Field(discriminator="kind")])


def exponent(size: int, squared_norm: float | None = None, tokens: int = MAX_TOKENS) -> int:
    """Fractional bits f for vectors of `size`, such that sums over `tokens` of them stay below 2**62.

    A norm's output has ||u||^2 <= size, and 16 bits are enough. A `squared_norm` is a bound that may be far above real
    values, so it gets up to 8 bits more.
    """
    room = 62 - (tokens - 1).bit_length() - (size - 1).bit_length()
    if squared_norm is None:
        return min(16, room)
    return min(24, room) - math.ceil(math.log2(max(squared_norm, 1e-30) / size))


def body_grams(hidden_size: int, attention_sizes: Sequence[int]) -> dict[str, int]:
    """Name of every gram of a body contribution -> its size; the first layer's inputs have none."""
    layers = range(len(attention_sizes))
    return dict([item for layer in layers for item in _layer_grams(hidden_size, attention_sizes, layer)][1:])


def _layer_grams(hidden_size: int, attention_sizes: Sequence[int], layer: int) -> list[tuple[str, int]]:
    inputs, outputs = (f"layers.{layer}.attention_{side}" for side in ("input", "output"))
    return [(inputs, hidden_size), *([(outputs, size)] if (size := attention_sizes[layer]) else [])]


def gram_length(hidden_size: int) -> int:
    """Entries in the upper triangle of an H x H matrix."""
    return hidden_size * (hidden_size + 1) // 2


def _header(manifest: AnyManifest, layers: range | None = None) -> bytes:
    tensors: dict[str, object] = {"__metadata__": {"manifest": canonical_json(manifest.model_dump()).decode()}}
    offset = 0
    for name, length in manifest.part(layers):
        end = offset + 8 * length
        tensors[name] = {"dtype": "I64", "shape": [length], "data_offsets": [offset, end]}
        offset = end
    body = json.dumps(tensors, separators=(",", ":"), ensure_ascii=False).encode()
    body += b" " * (-len(body) % 8)
    return len(body).to_bytes(8, "little") + body


def file_size(manifest: AnyManifest, layers: range | None = None) -> int:
    return len(_header(manifest, layers)) + 8 * sum(length for _, length in manifest.part(layers))


def write(out: BinaryIO, manifest: AnyManifest, arrays: Iterable[Int64], layers: range | None = None) -> str:
    """Writes the file to `out` tensor by tensor and returns its SHA-256. `arrays` yields them in the layout's order.

    With `layers`, it writes a journal of these layers, which is not a contribution.

    Raises:
        StatisticsFileError: an array's dtype or shape, or the number of arrays, differs from the manifest.
    """
    digest = hashlib.sha256()

    def emit(data: bytes) -> None:
        digest.update(data)
        out.write(data)

    emit(_header(manifest, layers))
    given = iter(arrays)
    for name, length in manifest.part(layers):
        array = next(given, None)
        if array is None:
            raise StatisticsFileError(name, "missing")
        if array.dtype != np.int64 or array.shape != (length,):
            raise StatisticsFileError(name, f"expected int64 [{length}], found {array.dtype} {list(array.shape)}")
        emit(array.astype("<i8", copy=False).tobytes())
    if next(given, None) is not None:
        raise StatisticsFileError("body", "more tensors than in the manifest")
    return digest.hexdigest()


def _places(manifest: AnyManifest, layers: range | None, offset: int) -> dict[str, tuple[int, int]]:
    """Name of each tensor -> its offset in the file and length."""
    places = {}
    for name, length in manifest.part(layers):
        places[name] = offset, length
        offset += 8 * length
    return places


def _manifest(header: bytes, kinds: TypeAdapter[AnyManifest]) -> AnyManifest:
    try:
        manifest = json.loads(header)["__metadata__"]["manifest"]
        return kinds.validate_json(manifest)
    except ValidationError as error:
        first = error.errors()[0]
        place = first["loc"][1:]  # without the kind
        field = ".".join(["manifest", *map(str, place)])
        raise StatisticsFileError(field, plainly(first)) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StatisticsFileError("header", "no manifest in its metadata") from error


class Sums:
    """A contribution or a sum of such, opened for reading, one tensor in memory at a time.

    Attributes:
        domains: the counts of each domain, by its name.

    Raises:
        StatisticsFileError: on opening, if header or size don't match the manifest exactly.
    """

    manifest: AnyManifest
    _kinds: ClassVar = _ANY

    def __init__(self, source: Source, layers: range | None = None) -> None:
        self._file = opened(source)
        self.name = self._file.name
        try:
            raw = self._read_header()
            self.manifest = _manifest(raw, self._kinds)
            header = _header(self.manifest, layers)
            if raw != header[8:]:
                raise StatisticsFileError("header", "not in canonical form for its manifest")
            self._places = _places(self.manifest, layers, len(header))
            size, expected = self._file.size, file_size(self.manifest, layers)
            if size != expected:
                raise StatisticsFileError("body", f"expected {expected} bytes, found {size}")
            self.domains = {item.domain: item for item in self.manifest.by_domain()}
        except BaseException:
            self._file.close()
            raise

    def _read_header(self) -> bytes:
        length = int.from_bytes(read_bytes(self._file, 0, 8), "little")
        if not 2 <= length <= MAX_HEADER_BYTES:
            raise StatisticsFileError("header", f"length {length} is not between 2 and {MAX_HEADER_BYTES}")
        raw = read_bytes(self._file, 8, length)
        if len(raw) != length:
            raise StatisticsFileError("header", f"expected {length} bytes, found {len(raw)}")
        return raw

    def array(self, name: str) -> Int64:
        """One tensor. Several threads may read at once."""
        return self._read(name, *self._places[name])

    def _read(self, name: str, offset: int, length: int) -> Int64:
        array: Int64 = np.empty(length, dtype="<i8")
        if self._file.read(offset, array.data.cast("B")) < array.nbytes:
            raise StatisticsFileError(name, "the file was truncated")
        return array.astype(np.int64, copy=False)

    def gram(self, layer: int) -> Int64:
        """[H(H+1)/2], the upper triangle of a layer's gram (router contributions)."""
        return self.array(f"layers.{layer}.gram")

    def cross(self, layer: int, domain: str) -> Int64:
        """[H], a layer's sum of a domain's features (router contributions)."""
        name, hidden = f"layers.{layer}.cross", self.manifest.hidden_size
        return self._read(name, self._places[name][0] + 8 * hidden * [*self.domains].index(domain), hidden)

    def arrays(self) -> Iterator[Int64]:
        return (self.array(name) for name in self._places)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


class StatisticsFile(Sums):
    """A contribution opened for reading; with `layers`, a journal of these layers.

    Raises:
        StatisticsFileError: on opening, also of a sum of contributions.
    """

    manifest: Manifest
    _kinds: ClassVar = _CONTRIBUTION

    def cross(self, layer: int, domain: str | None = None) -> Int64:
        """[H], a layer's sum of features (router contributions)."""
        return super().cross(layer, domain or self.manifest.domain)
