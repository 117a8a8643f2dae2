"""The plan of each file of a version, whose key names the content before it is written."""

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PretrainedConfig

from moerge.bodies.heads import HeadInputs, head_plan, is_tied
from moerge.errors import IncompatibleExpertError
from moerge.models.config import published_config
from moerge.models.dense_files import Dense, DenseFiles
from moerge.models.families.family import EMBEDDING, HEAD, TOKEN_IDS, Constant, Family, Host, Matrix, Piece
from moerge.models.reader import Checkpoint
from moerge.models.rows import tokens_without_row
from moerge.models.side_files import published_generation, published_tokenizer
from moerge.models.writer import StackedPlan, TensorPlan, copies, safetensors_header, write_safetensors
from moerge_proto.digests import canonical_json, digest_of, sha256_hex
from moerge_proto.records import RECORD_FILE, Record
from moerge_proto.version_files import (
    ADDED_FILE,
    BODY_FILE,
    CONFIG_FILE,
    FUSED_FILE,
    GENERATION,
    HEAD_FILE,
    INDEX_FILE,
    REPORT_FILE,
    ROUTER_FILE,
    TOKENIZER_FILES,
    expert_name,
)
from moerge_proto.versions import Lineage, SolveReport

_PIECE = 2**22
_LAYOUT = 1  # raise when the bytes of a planned file change for the same inputs


@dataclass(frozen=True)
class FilePlan:
    """One file of a version.

    Attributes:
        key: a digest of all inputs of the content; empty if no other folder can share it.
        write: writes the content and returns its SHA-256.
        tensors: names and bytes of its tensors.
        sha256: the content's digest, if known in advance.
        parameters: number of its tensors' elements.
        header: of weights, makes the file's beginning, before the tensors.
    """

    name: str
    key: str
    write: Callable[[BinaryIO], str]
    tensors: dict[str, int]
    sha256: str | None = None
    parameters: int = 0
    header: Callable[[], bytes] | None = None

    def digest(self) -> str:
        """The SHA-256 of the content, computed without a file unless it is known."""
        with Path(os.devnull).open("wb") as out:
            return self.sha256 or self.write(out)


def _weights(name: str, plans: Sequence[TensorPlan | StackedPlan], **inputs: object) -> FilePlan:
    key = digest_of({"layout": _LAYOUT, "name": name, **inputs})  # type: ignore[dict-item]  # callers pass JSON
    sizes, parameters = {plan.name: plan.bytes for plan in plans}, sum(math.prod(plan.shape) for plan in plans)
    return FilePlan(
        name,
        key,
        lambda out: write_safetensors(out, plans),
        sizes,
        parameters=parameters,
        header=lambda: safetensors_header(plans),
    )


def body_files(dense: Dense, digest: str, sha256: str) -> list[FilePlan]:
    """The body under its published names: its own file where names match, and a file of zeros that the family needs.

    Args:
        digest: the body's name.
        sha256: the digest of its file.
    """
    body, family, config = dense.checkpoint, dense.family, dense.config
    added = [_constant(constant, config, body.specs[EMBEDDING].dtype) for constant in family.constants_of(config)]
    if not family.pieces_of(config).keys().isdisjoint(body.specs):
        plans = _published(copies(body, sorted(body.specs)), dense)
        return [_weights(BODY_FILE, plans + added, body=digest)]
    size = {name: spec.bytes for name, spec in body.specs.items()}
    count, key = sum(math.prod(spec.shape) for spec in body.specs.values()), digest_of({"sha256": sha256})
    whole = FilePlan(BODY_FILE, key, lambda out: copied_bytes(body.path, out), size, sha256, count)
    return [whole, _weights(ADDED_FILE, added, body=digest)] if added else [whole]


def head_file(lineage: Lineage, inputs: HeadInputs, dense: Dense) -> FilePlan:
    """The head under its published names, with the body `dense`. A tied one is written as well, unless omitted.

    Some engines don't tie.

    Raises:
        IncompatibleExpertError: `tied`, but the head isn't the embedding; or see `head_plan`.
    """
    method, plans = lineage.head.method, head_plan(lineage.head.method, inputs)
    tied = is_tied(method, inputs)
    if lineage.tied and not tied:
        problem, todo = "the head isn't the embedding", "publish it without `tied`"
        raise IncompatibleExpertError(problem, where=HEAD, todo=todo)
    if tied and not lineage.tied:
        plans = [_copy(inputs.body.checkpoint, EMBEDDING, HEAD), *plans]
    made = lineage.head.model_dump(mode="json")
    inputs_of = {"body": lineage.body, "seed": lineage.seed, "experts": lineage.experts}
    return _weights(HEAD_FILE, _published(plans, dense), head=made, **inputs_of, tied=lineage.tied)


def mlp_files(experts: Sequence[tuple[Checkpoint, str]], family: Family, layers: Sequence[int]) -> list[FilePlan]:
    """The MLPs of a version's experts, each given with its digest: a file of each, or one of all if they are fused.

    `layers`: see `mlp_layers`.
    """
    if not family.host.fused:
        return [expert_file(expert, family, layers, slot, digest) for slot, (expert, digest) in enumerate(experts)]
    plans = [
        StackedPlan(
            name,
            len(experts),
            [
                _matrix(expert, family, layers, layer, slot, matrix)
                for slot, (expert, _) in enumerate(experts)
                for matrix in matrices
            ],
        )
        for layer in layers
        for name, matrices in family.host.expert_tensors(layer).items()
    ]
    return [_weights(FUSED_FILE, plans, experts=[digest for _, digest in experts], **_made_for(family))]


def expert_file(expert: Checkpoint, family: Family, layers: Sequence[int], slot: int, digest: str) -> FilePlan:
    """One expert's MLPs under the names of slot `slot`; `expert` may be the file of that slot in another version."""
    plans = expert_matrices(expert, family, layers, slot)
    return _weights(expert_name(slot), plans, expert=digest, **_made_for(family))


def expert_matrices(expert: Checkpoint, family: Family, layers: Sequence[int], slot: int) -> list[TensorPlan]:
    """The matrices of an expert in slot `slot`; `expert` may be a published file that has them there."""
    return [_matrix(expert, family, layers, layer, slot, matrix) for layer in layers for matrix in family.host.experts]


def _made_for(family: Family) -> dict[str, str]:
    return {"family": family.model_type, "host": family.host.model_type}


def _matrix(
    expert: Checkpoint, family: Family, layers: Sequence[int], layer: int, slot: int, matrix: Matrix
) -> TensorPlan:
    host, (dense, block, blocks) = family.host, family.place(matrix, layer)
    target = host.experts[matrix].format(layer=layer, expert=slot)
    if dense in expert.specs:
        plan, side = _block(expert, dense, target, block, blocks), int(matrix == "down")
        most = max(expert.specs[family.place(matrix, other)[0]].shape[side] for other in layers)
        return _padded(plan, side, most // (1 if side else blocks))
    held = host.expert_tensors(layer, slot)[target]
    return _block(expert, target, target, held.index(matrix), len(held), slot if host.fused else None)


def _padded(plan: TensorPlan, side: int, width: int) -> TensorPlan:
    """A matrix with zeros behind its rows (side 0) or columns (1), if it has fewer than `width`, as the widest layer's.

    All experts of a class have one width. A zero row of gate and up gives a zero input of down.
    """
    rows, columns = plan.shape
    if plan.shape[side] == width:
        return plan
    missing = (0, 0, 0, width - rows) if side == 0 else (0, width - columns)
    shape = (width, columns) if side == 0 else (rows, width)
    return TensorPlan(plan.name, plan.dtype, shape, lambda: pad(plan.compute(), missing))


def _block(source: Checkpoint, name: str, target: str, number: int, blocks: int, slot: int | None = None) -> TensorPlan:
    """One of a tensor's equal blocks of rows; of a tensor of fused experts, in a slot."""
    spec = source.specs[name]
    whole = spec.shape if slot is None else spec.shape[1:]
    rows = whole[0] // blocks

    def compute() -> Tensor:
        tensor = source.tensor(name)
        return (tensor if slot is None else tensor[slot])[number * rows : (number + 1) * rows]

    return TensorPlan(target, spec.dtype, (rows, *whole[1:]), compute)


def _copy(source: Checkpoint, name: str, target: str) -> TensorPlan:
    return _block(source, name, target, 0, 1)


def _published(plans: Sequence[TensorPlan], dense: Dense) -> list[TensorPlan]:
    """The published tensors that are made of these dense ones."""
    pieces = dense.family.pieces_of(dense.config)
    return [made for plan in plans for made in _made(plan, pieces.get(plan.name), dense.config)]


def _made(plan: TensorPlan, pieces: Sequence[Piece] | None, config: PretrainedConfig) -> list[TensorPlan]:
    if pieces is None:
        return [plan]
    dense = torch.empty(plan.shape, dtype=plan.dtype, device="meta")
    return [
        TensorPlan(
            piece.name, plan.dtype, tuple(piece.of(dense, config).shape), partial(_computed, piece, plan, config)
        )
        for piece in pieces
    ]


def _computed(piece: Piece, plan: TensorPlan, config: PretrainedConfig) -> Tensor:
    return piece.of(plan.compute(), config)


def _constant(constant: Constant, config: PretrainedConfig, dtype: torch.dtype) -> TensorPlan:
    return TensorPlan(constant.name, dtype, constant.size(config), lambda: constant.of(config, dtype))


def copied_bytes(path: Path, out: BinaryIO) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
            out.write(piece)
    return digest.hexdigest()


def router_file(
    routers: Callable[[], Sequence[Tensor]],
    gains: Tensor,
    layers: Sequence[int],
    experts: int,
    host: Host,
    dtype: torch.dtype,
    lineage: str,
) -> FilePlan:
    """The routers, in `dtype`; `routers` gives one [D, H] per layer, called when writing.

    `gains`: [L, H] float32, of `layers`.
    """

    def plans(place: int, layer: int) -> Iterator[TensorPlan]:
        name, shape = host.router.format(layer=layer), (experts, gains.shape[1])
        yield TensorPlan(name, dtype, shape, lambda: host.router_of(routers()[place], gains[place]).to(dtype))
        for vector, value in host.router_vectors.items():
            equal = partial(torch.full, (experts,), value, dtype=dtype)
            yield TensorPlan(vector.format(layer=layer), dtype, (experts,), equal)

    return _weights(ROUTER_FILE, [plan for pair in enumerate(layers) for plan in plans(*pair)], lineage=lineage)


def report_file(report: Callable[[], SolveReport], lineage: str) -> FilePlan:
    """The report of the solves; `report` is called when writing."""
    key = digest_of({"report": lineage})
    return FilePlan(REPORT_FILE, key, lambda out: written(f"{report().model_dump_json(indent=1)}\n".encode(), out), {})


def text_file(name: str, text: str) -> FilePlan:
    return FilePlan(name, digest_of({"text": text}), partial(written, text.encode()), {})


def written(data: bytes, out: BinaryIO) -> str:
    """Writes `data` and returns its SHA-256."""
    out.write(data)
    return sha256_hex(data)


def copied_file(path: Path, name: str | None = None) -> FilePlan:
    """A copy of a file that isn't shared between versions; by default under the same name."""
    return FilePlan(name or path.name, "", partial(copied_bytes, path), {})


def record_file(record: Record) -> FilePlan:
    return text_file(RECORD_FILE, canonical_json(record.model_dump(mode="json")).decode() + "\n")


def index_file(weights: Sequence[FilePlan]) -> FilePlan:
    where = {name: plan.name for plan in weights for name in plan.tensors}
    size = sum(sum(plan.tensors.values()) for plan in weights)
    index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(where.items()))}
    return text_file(INDEX_FILE, json.dumps(index, indent=1) + "\n")


def version_config(body: Dense, experts: int, top_k: int, context: int | None = None, *, tied: bool) -> dict[str, Any]:
    """The fields of config.json; `context` in tokens, by default the body's."""
    embedding, config = body.checkpoint.specs[EMBEDDING], copy(body.config)
    if context is not None:
        config.max_position_embeddings = context
    dtype = str(embedding.dtype).removeprefix("torch.")
    return published_config(body.family, config, experts, top_k, dtype, embedding.shape[0], tied)


def config_files(side_files: DenseFiles, published: Mapping[str, Any]) -> list[FilePlan]:
    """config.json, and a dense model's generation_config.json and tokenizer, without code or odd decoding."""
    plans = [text_file(CONFIG_FILE, json.dumps(published, indent=2, sort_keys=True) + "\n")]
    default = json.dumps({name: published.get(name) for name in TOKEN_IDS}, indent=2) + "\n"
    rows = int(published["vocab_size"])
    plans.append(text_file(GENERATION, published_generation(side_files, rows) or default))
    paths, removed = [side_files.side_file(name) for name in TOKENIZER_FILES], tokens_without_row(side_files, rows)
    small = {path.name: published_tokenizer(path, removed) for path in paths if path.is_file()}
    keys = {name: digest_of({"sha256": sha256_hex(data)}) for name, data in small.items()}
    return plans + [FilePlan(name, keys[name], partial(written, data), {}) for name, data in small.items()]
