"""Settings of Mellum as a host: a window and a rope for each kind of layer, and norms of heads made linear.

Mellum norms the heads of queries and keys. For families that don't, the norm is made linear: norm(c x) w is
c x w / sqrt(eps) if c^2 mean(x^2) is far below eps. The projections are multiplied by c, a power of two.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig

from moerge.errors import IncompatibleExpertError
from moerge.models.families.common import INPUTS, LAYER
from moerge.models.families.family import Constant, Demand, Piece

_SCALE = 2.0**-30
LINEAR = "linear_qk_norms"
"""The published config field that tells linear norms, for limits of engines; transformers ignores it."""
_WHY = "its projections are published as multiples of 2^-30, which float16 rounds to 0"
LINEAR_DEMAND = Demand("dtype", ("float32", "bfloat16"), _WHY)


def _scaled(rows: Tensor, config: PretrainedConfig) -> Tensor:
    if rows.dtype == torch.float16:
        todo = "save the experts in bfloat16 or float32"
        raise IncompatibleExpertError(f"float16 has no exact equivalent: {_WHY}", where="self_attn.q_proj", todo=todo)
    return rows * _SCALE


def _gains(config: PretrainedConfig, dtype: torch.dtype) -> tuple[float, float]:
    """Weights of the norms of queries and keys; only their product counts, and bfloat16 hardly changes it."""
    product = config.rms_norm_eps / _SCALE**2
    exponent = math.floor(math.log2(product) / 2)
    queries = (torch.arange(128, 256, dtype=torch.float64) / 128) * 2.0**exponent  # in every dtype
    keys = product / queries
    best = int((keys.bfloat16().double() / keys - 1).abs().argmin())
    return float(queries[best]), float(keys[best].to(dtype))


def _gain(index: int) -> Callable[[PretrainedConfig, torch.dtype], float]:
    return lambda config, dtype: _gains(config, dtype)[index]


LINEAR_PIECES = {
    f"{module}.{part}": (Piece(f"{module}.{part}", _scaled),) for module in INPUTS[:2] for part in ("weight", "bias")
}
LINEAR_NORMS = tuple(
    Constant(LAYER + f"self_attn.{name}_norm.weight", ("head_dim",), _gain(index)) for index, name in enumerate("qk")
)


def windowed(config: PretrainedConfig) -> Mapping[str, Any]:
    """The dense windows and rope; full attention in a family without windows."""
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    ropes = dict.fromkeys(sorted(set(kinds)), config.rope_parameters)
    return {"layer_types": kinds, "rope_parameters": ropes, "sliding_window": getattr(config, "sliding_window", None)}


def partly_rotating(config: PretrainedConfig) -> Mapping[str, Any]:
    """The rope in layers with one. They have a window of the whole context, because kinds of layers have names."""
    kinds = ["sliding_attention" if rotates else "full_attention" for rotates in config.no_rope_layers]
    still = {**config.rope_parameters, "rope_type": "proportional", "partial_rotary_factor": 0.0}
    ropes = {"sliding_attention": config.rope_parameters, "full_attention": still}
    return {
        "layer_types": kinds[: config.num_hidden_layers],
        "rope_parameters": {kind: ropes[kind] for kind in sorted(set(kinds))},
        "sliding_window": config.max_position_embeddings,
    }
