"""A checkpoint folder read tensor by tensor."""

import math
from collections.abc import Collection, Iterable, Mapping
from copy import copy
from pathlib import Path
from typing import Protocol, Self

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PretrainedConfig

from moerge.errors import CheckpointError
from moerge.models.adapters import Adapter, is_adapter
from moerge.models.families.family import HEAD, mlp_layers
from moerge.models.stored import NOTHING_REMOTE, StoredTensors, TensorSpec
from moerge.models.wrappers import Part, text_name
from moerge_proto.ranges import Ranges, Source


class Tensors(Protocol):
    """Tensors by name."""

    @property
    def specs(self) -> Mapping[str, TensorSpec]: ...
    def tensor(self, name: str) -> Tensor: ...


class Checkpoint:
    """The weights of a folder, or of one safetensors file of any name. An adapter's tensors are merged while read.

    Opening reads only headers. `remote` has weights that aren't in the folder (of an adapter, its base's), by file
    name.

    Attributes:
        specs: name -> file, shape and dtype. A wrapper's tensors are those of its text model, by its names.
        parts: the kinds and sizes of a wrapper's other tensors, which are not read.
        files: the files that are read.

    Raises:
        CheckpointError: a file or tensor is missing, damaged or of an unsupported kind.
    """

    def __init__(self, path: Path, remote: Mapping[str, Ranges] = NOTHING_REMOTE) -> None:
        self.path = path
        self._source = Adapter(path, remote) if is_adapter(path) else StoredTensors(path, remote)
        self.specs, self.parts, self.files = self._source.specs, self._source.parts, self._source.files

    @classmethod
    def of_file(cls, source: Source) -> Self:
        return cls(source) if isinstance(source, Path) else cls(Path(source.name), {source.name: source})

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: spec.shape for name, spec in self.specs.items()}

    def leave_out(self, names: Iterable[str], kind: str) -> None:
        """Counts the tensors of these names among the parts that aren't read, as one kind."""
        for name in names:
            if (spec := self.specs.pop(name, None)) is not None:
                self.parts[kind] = self.parts.get(kind, Part()).plus(math.prod(spec.shape))

    def tensor(self, name: str) -> Tensor:
        """One tensor, in its dtype; CheckpointError if there is none of that name."""
        return self._source.tensor(name)

    def copy(self, name: str, out: Tensor) -> None:
        """Reads one tensor into `out`, contiguous and of its shape, in the dtype of `out`."""
        self._source.copy(name, out)

    def require_unchanged(self) -> None:
        """Requires that no file was replaced or changed since its header was read; CheckpointError names it."""
        self._source.require_unchanged()


def model_shapes(config: PretrainedConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of a dense config's model; CheckpointError if the settings define no model."""
    try:
        with torch.device("meta"):
            model: nn.Module = AutoModelForCausalLM.from_config(copy(config), attn_implementation="eager")
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, ImportError, RuntimeError) as error:
        raise CheckpointError(f"invalid model settings: {error}", where="config.json") from error
    return {text_name(name): tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def require_tensors(checkpoint: Checkpoint, config: PretrainedConfig, names: Collection[str] | None = None) -> None:
    """Requires exactly the tensors of the config's model; a tied head may have one, which then counts.

    `names`: only these of the model's tensors.

    Raises:
        CheckpointError: names the first tensor that is missing, superfluous, in float64 or of another shape.
    """
    layers = config.num_hidden_layers if names is None else len(mlp_layers(config))
    if layers > len(checkpoint.specs):  # before such a model is made
        problem = f"num_hidden_layers is {layers}, but there are {len(checkpoint.specs)} tensors"
        raise CheckpointError(problem, where="config.json: num_hidden_layers")
    expected = model_shapes(config)
    if names is not None:
        expected = {name: shape for name, shape in expected.items() if name in names}
    elif config.tie_word_embeddings and HEAD not in checkpoint.specs:
        expected.pop(HEAD, None)
    for name in [*expected, *checkpoint.specs.keys() - expected.keys()]:
        spec, where = checkpoint.specs.get(name), f"{checkpoint.path.name}: {name}"
        if name not in expected:
            todo = "name a config.json of this model, or save the model again with save_pretrained"
            raise CheckpointError("the config's model has no such tensor", where=where, todo=todo)
        if spec is None:
            todo = "set tie_word_embeddings to true in config.json if the head is the embedding; otherwise save again"
            todo = todo if name == HEAD else "save the model again with save_pretrained"
            raise CheckpointError("tensor not found", where=where, todo=todo)
        if spec.dtype == torch.float64:
            todo = "save the model again in float32: model.float().save_pretrained(FOLDER)"
            problem = "dtype F64, which stock MoE classes can't compute; expected F32, BF16 or F16"
            raise CheckpointError(problem, where=where, todo=todo)
        if spec.shape != expected[name]:
            raise CheckpointError(f"expected shape {list(expected[name])}, found {list(spec.shape)}", where=where)
