"""The memory of each piece of work, one formula each. H, L, M, V, A and D: see `Shape`, and the number of experts.

Experts and sums are counted as anonymous memory, as if read from S3; those of a local folder are mapped.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from transformers import PretrainedConfig

from moerge.documents.shards import enough
from moerge.memory.shapes import (
    Shape,
    beside_numbers,
    layer_parameters,
    layer_tensor,
    mixed_numbers,
    position_numbers,
)
from moerge.models.families.hosts import HOSTS
from moerge.threads import AT_ONCE
from moerge_proto.statistics_file import gram_length

SUM_ROWS = 128
"""Rows of a gram in a block of a sum; a block has only the columns from its first row on."""
_GPU_SUM_ROWS = 1024  # smaller products leave most of a GPU idle
EMBEDDING_ROWS, HEAD_ROWS = 2**12, 2**15
"""Rows of an embedding that are weighted at a time, and of a head that are solved."""
WHITENED_ROWS = 2**12
"""Features of public text that are in float64 at a time."""
PUBLIC_TOKENS = 2**14
"""More than tokenizers make of the pool."""
CHECKS_AT_ONCE = 2
"""Contributions that a coordinator checks at a time."""


@dataclass(frozen=True)
class Need:
    """The memory of a piece of work in bytes, whatever the number of layers."""

    work: str
    device: Mapping[str, int]  # parts where the model is, by name
    host: Mapping[str, int] = field(default_factory=dict)  # further parts in host memory, by name
    journal: int = 0  # of the process with the journal, in host memory
    token: int = 0  # hidden states of one token that counts, in host memory
    positions: int = 1  # those of the model for such a token
    tokens: int = 0  # the least number of tokens whose hidden states are in memory
    gpu: bool = False  # whether the model is on a GPU

    @property
    def on_device(self) -> int:
        return sum(self.device.values())

    @property
    def in_host(self) -> int:
        """Bytes in host memory, without journal and hidden states."""
        return sum(self.host.values()) + (0 if self.gpu else self.on_device)

    def total(self, tokens: int = 0) -> int:
        """Bytes with the hidden states of `tokens`, without the journal."""
        return self.on_device + sum(self.host.values()) + tokens * self.token

    @property
    def least(self) -> int:
        """Bytes of the least hidden states."""
        return self.token * self.tokens


def sum_blocks(size: int, device: str = "cpu") -> list[tuple[int, int]]:
    """The shapes of a gram's blocks, which have its upper triangle."""
    rows = SUM_ROWS if device == "cpu" else _GPU_SUM_ROWS
    return [(min(rows, size - start), size - start) for start in range(0, size, rows)]


def sum_bytes(size: int, device: str = "cpu") -> int:
    """Bytes of a gram's float64 sum over one shard: about half of a square."""
    return 8 * sum(rows * columns for rows, columns in sum_blocks(size, device))


# --- on a model, layer by layer; the second of two layers is read ahead


def _moved(states: int, device: str) -> dict[str, int]:
    """On a GPU: micro-batches of hidden states, of these bytes, that come from host memory or leave to it."""
    return {"hidden states on their way": 4 * states} if device == "cuda" else {}


def _pinned(name: str, device: str, *sizes: int) -> dict[str, int]:
    """For a GPU: two blocks of pinned memory for each size in bytes; PyTorch takes powers of two."""
    return {f"pinned {name}": sum(2 << (size - 1).bit_length() for size in sizes)} if device == "cuda" else {}


def passing(
    shape: Shape, batch_tokens: int, *, body: bool, threads: int = 1, device: str = "cpu", positions: int = 1
) -> Need:
    """A statistics pass of a process that computes `threads` shards at a time; two shards' sums are added up.

    One thread begins a shard while the last one's integers, in the memory of its sums, are added.

    `body`: for a body contribution; sums are those of a layer. `positions`: of the model for a token that counts.
    """
    grams = [shape.hidden, shape.attention_size] if body else [shape.hidden]
    triangles = [8 * gram_length(gram) for gram in grams]
    mixed = max(shape.number * 3 * shape.intermediate, 4 * shape.mixed)
    batch = mixed + shape.number * (4 * shape.hidden + shape.beside) + 4 * max(grams)
    state = shape.number * shape.position
    return Need(
        work="a pass",
        device={
            "two layers": 2 * shape.number * shape.layer,
            "sums": max(threads, 2) * sum(sum_bytes(gram, device) for gram in grams),
            "a micro-batch": threads * batch_tokens * batch,
            **_moved(batch_tokens * state, device),
        },
        host={
            "integers": 2 * sum(triangles),
            **_pinned("integers", device, *triangles),
            **_pinned("weights", device, shape.number * shape.tensor),
        },
        journal=3 * sum(triangles),
        token=positions * state,
        positions=positions,
        tokens=enough(shape.hidden),
        gpu=device == "cuda",
    )


def scoring(config: PretrainedConfig, dtype: torch.dtype, batch_tokens: int, context: int, device: str = "cpu") -> Need:
    """Scoring in windows of `context`, by the config of a dense model or a published version, with all its experts."""
    size, hidden, vocabulary = dtype.itemsize, int(config.hidden_size), int(config.vocab_size)
    inner = int(getattr(config, "moe_intermediate_size", None) or config.intermediate_size)
    host = HOSTS.get(config.model_type)
    tokens, chosen = batch_tokens, 1 if host is None else host.top_k(config)
    residual = size * (6 * hidden + beside_numbers(config))
    batch = tokens * (residual + max(size * chosen * (3 * inner + 3 * hidden), 4 * mixed_numbers(config)))
    logits = tokens * vocabulary * (size + (0 if dtype is torch.float32 else 4)) + 8 * context * vocabulary
    head = size * (vocabulary + tokens) * hidden + logits
    state = size * position_numbers(config)
    return Need(
        work="scoring",
        device={
            "two layers": 2 * size * layer_parameters(config),
            "a micro-batch" if batch > head else "head and logits": max(batch, head),
            **_moved(tokens * state, device),
        },
        host=_pinned("weights", device, size * layer_tensor(config)),
        token=state,
        tokens=tokens,
        gpu=device == "cuda",
    )


def whitening(shape: Shape, tokens: int, device: str = "cpu") -> Need:
    """The whitening by `tokens` of public text, document by document: residuals, and features twice, in float32."""
    number = 4 * shape.hidden
    return Need(
        work="the whitening by public text",
        device={"two layers": 2 * shape.number * shape.layer, "residuals": number * tokens},
        host={"features": 2 * number * (tokens + min(tokens, WHITENED_ROWS)), "squares": 4 * 8 * shape.hidden**2},
        gpu=device == "cuda",
    )


def fitting(shape: Shape, batch_tokens: int, device: str = "cpu", threads: int = 1) -> Need:
    """A fit of MLPs in float32: two layers of expert, seed, and body with the new MLPs; two residuals a token.

    The solve of the last matrix, with M inputs, has gram and factor, 16 M^2, and six times its cross product, 48 M H.
    The sums before it have a gram and two cross products, and float32 products of each micro-batch and one more.
    """
    hidden, inner = shape.hidden, shape.intermediate
    solve, products = 16 * inner**2 + 48 * inner * hidden, 2 * inner * (inner + SUM_ROWS) + 4 * inner * hidden
    sums = 8 * inner**2 + 16 * inner * hidden + (threads + 1) * products
    return Need(
        work="fitting MLPs",
        device={
            "two layers of three models": 3 * 2 * 4 * shape.layer,
            "a solve" if solve > sums else "sums and products": max(solve, sums),
            "residuals of public text": 2 * 4 * hidden * PUBLIC_TOKENS,
            "a micro-batch": threads * 4 * batch_tokens * (8 * hidden + max(4 * inner, shape.mixed)),
            **_moved(2 * 4 * hidden * batch_tokens, device),
        },
        host=_pinned("weights", device, *[4 * shape.tensor] * 3),
        token=2 * 4 * hidden,
        gpu=device == "cuda",
    )


def writing_texts(shape: Shape, domain: str, device: str = "cpu") -> Need:
    """An expert that writes texts, in float32."""
    return Need(f"writing texts of {domain}", {"the model": 4 * shape.expert}, gpu=device == "cuda")


# --- of a coordinator, or of a merge on one machine


class MergeMethod(Protocol):
    """The part of a body method that decides its memory."""

    @property
    def needs(self) -> Collection[str]: ...
    @property
    def solved(self) -> bool: ...
    @property
    def is_seed(self) -> bool: ...
    @property
    def wide_copies(self) -> int: ...


def merging(shape: Shape, experts: int, method: MergeMethod, cores: int) -> Need:
    """A merge of a body: tensors of each expert and the base, a merged one, and an earlier one that is written."""
    if method.is_seed:
        tensors = shape.largest + shape.projection  # the second one is written
        return Need("writing the seed's body", {"tensors": shape.number * tensors})
    if method.solved:
        return Need("merging the body", {"tensors and grams": _solved(shape, experts, cores)})
    read = experts + int("base" in method.needs)
    merged = max(shape.number, 8 * method.wide_copies)  # copies are freed before the tensor is merged
    return Need("merging the body", {"tensors": ((read + 1) * shape.number + merged) * shape.largest})


def _solved(shape: Shape, experts: int, cores: int) -> int:
    """The larger of embedding and attention.

    Embedding: of each expert, a merged one, four float64 blocks of `EMBEDDING_ROWS` rows, and five float64 numbers an
    expert and token. Attention: the written embedding; of each projection at work a tensor of each expert and seven
    float64 squares.
    """
    rows = 4 * 8 * min(EMBEDDING_ROWS, shape.vocabulary) * shape.hidden + experts * 5 * 8 * shape.vocabulary
    embedding = (experts + 1) * shape.number * shape.embedding + rows
    projection = experts * shape.number * shape.projection + 7 * 8 * shape.widest**2
    return max(embedding, shape.number * shape.embedding + min(cores, AT_ONCE) * projection)


def merging_head(shape: Shape, experts: int, *, solved: bool) -> Need:
    """A version's head: one of each expert, and two merged ones, whole and in blocks.

    Of a solved one, four float64 blocks of `HEAD_ROWS` rows, and five float64 squares.
    """
    heads = (experts + 2) * shape.number * shape.embedding
    solve = 4 * 8 * min(HEAD_ROWS, shape.vocabulary) * shape.hidden + 5 * 8 * shape.hidden**2
    return Need("making the head", {"heads and grams": heads + solve if solved else heads})


def solving(shape: Shape, cores: int) -> Need:
    """The solve of routers: of each layer at work the gram, its factor and two slices, four float64 [H, H]."""
    return Need("solving the routers", {"squares": min(cores, AT_ONCE, shape.layers) * 4 * 8 * shape.hidden**2})


def influence(shape: Shape, cores: int) -> Need:
    """Seven squares of each layer at work: grams of all, one owner and the others, and a solve without the owner."""
    return Need("the owners' influence", {"squares": min(cores, AT_ONCE, shape.layers) * 7 * 8 * shape.hidden**2})


def receiving(shape: Shape) -> Need:
    """An expert's check: its largest tensor, absolute values, and two booleans an element."""
    largest = shape.hidden * max(shape.vocabulary, shape.intermediate)
    return Need("receiving an expert", {"tensors": (2 * shape.number + 2) * largest})


def checking(shape: Shape) -> Need:
    """Two checks of contributions: a triangle and a square each, 12 H^2."""
    return Need("checking contributions", {"grams": CHECKS_AT_ONCE * 12 * shape.hidden**2})


def publishing(shape: Shape) -> Need:
    """Writing a version: two of the largest tensors, of an MLP."""
    return Need("writing the version", {"tensors": 2 * shape.number * shape.hidden * shape.intermediate})
