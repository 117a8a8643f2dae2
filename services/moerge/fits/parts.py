"""An expert's parts for versions under a body: a folder with its MLPs and own head, without attention and embedding."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import BinaryIO

from torch import Tensor

from moerge.files import atomic_file
from moerge.models.dense import mlp_names, part_names, stored_name
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import small_files
from moerge.models.stored import SINGLE, TensorSpec
from moerge.models.writer import TensorPlan, write_safetensors

_CONFIG = "config.json"


def write_parts(
    expert: DenseFiles, folder: Path, mlp: Callable[[str], Tensor] | None = None, *, own_head: bool = True
) -> Path:
    """Writes an expert's parts into `folder`; returns it. A tied head becomes `lm_head.weight`: the embedding's rows.

    `mlp` gives an MLP's tensor by name, in any dtype; default: the expert's own. Without `own_head` only MLPs are
    written.
    """
    small = small_files(expert)
    if own_head:
        config = {**json.loads(small[_CONFIG]), "tie_word_embeddings": False}
        small[_CONFIG] = f"{json.dumps(config, indent=2)}\n".encode()
    for name, data in small.items():
        with atomic_file(folder / name) as out:
            out.write(data)
    with atomic_file(folder / SINGLE) as out:
        write_part_weights(expert, out, mlp=mlp, own_head=own_head)
    return folder


def write_part_weights(
    expert: DenseFiles,
    out: BinaryIO,
    written: Callable[[int], None] | None = None,
    *,
    own_head: bool,
    mlp: Callable[[str], Tensor] | None = None,
) -> str:
    """Writes the parts' tensors as one safetensors file; see `write_parts` and `write_safetensors`."""
    mlps = set(mlp_names(expert)) if mlp is not None else set[str]()

    def tensor(name: str, at: TensorSpec) -> Tensor:
        if mlp is None or name not in mlps:
            return expert.checkpoint.tensor(stored_name(expert.checkpoint, name))
        return mlp(name).to(at.dtype)

    names = part_names(expert, own_head=own_head)
    specs = {name: expert.checkpoint.specs[stored_name(expert.checkpoint, name)] for name in names}
    plans = [TensorPlan(name, at.dtype, at.shape, partial(tensor, name, at)) for name, at in specs.items()]
    return write_safetensors(out, plans, written)


def part_bytes(expert: DenseFiles, *, own_head: bool = True) -> int:
    """The bytes of an expert's parts."""
    names = part_names(expert, own_head=own_head)
    return sum(expert.checkpoint.specs[stored_name(expert.checkpoint, name)].bytes for name in names)
