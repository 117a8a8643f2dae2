"""Merging a trunk, tensor by tensor, from open checkpoints."""

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from moerge.architectures.families import Family
from moerge.checkpoint.reader import Checkpoint, TensorSpec
from moerge.checkpoint.writer import TensorPlan
from moerge.trunk.average import average
from moerge_proto.digests import digest_of

Method = Callable[[Sequence[Tensor]], Tensor]
METHODS: Mapping[str, Method] = {"average": average}
"""How D tensors of one name become the trunk's; each is a pure function of the ordered experts."""


def trunk_names(checkpoint: Checkpoint, family: Family, layers: int) -> list[str]:
    """The non-MLP tensors of a dense checkpoint, sorted; buffers that older files carry are left out."""
    mlp = set(family.dense_mlp_names(layers))
    return sorted(name for name in checkpoint.specs if name not in mlp and not name.endswith("rotary_emb.inv_freq"))


def merge_plan(checkpoints: Sequence[Checkpoint], family: Family, layers: int, method: str) -> list[TensorPlan]:
    """The trunk's tensors in the dense family's names: at most len(checkpoints) + 2 tensors in memory at a time.

    An expert with a tied head counts with its embedding as head where another has a head of its own.
    """
    merge = METHODS[method]
    names = sorted({name for checkpoint in checkpoints for name in trunk_names(checkpoint, family, layers)})

    def plan(name: str) -> TensorPlan:
        spec = _source(checkpoints[0], name)[1]
        return TensorPlan(name, spec.dtype, spec.shape, lambda: merge([_tensor(each, name) for each in checkpoints]))

    return [plan(name) for name in names]


def _source(checkpoint: Checkpoint, name: str) -> tuple[str, TensorSpec]:
    if name == "lm_head.weight" and name not in checkpoint.specs:
        name = "model.embed_tokens.weight"
    return name, checkpoint.specs[name]


def _tensor(checkpoint: Checkpoint, name: str) -> Tensor:
    return checkpoint.tensor(_source(checkpoint, name)[0])


def trunk_digest(method: str, experts: Sequence[str], files: Mapping[str, str], exponents: Sequence[int]) -> str:
    """The trunk's name: a digest of how it was made, from whom, and every file's digest."""
    return digest_of({"method": method, "experts": list(experts), "files": dict(files), "exponents": list(exponents)})
