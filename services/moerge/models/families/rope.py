"""Ropes of dense families in a class that rotates whole heads, in pairs of rows i and i + d / 2.

Scores of queries and keys don't change if both have their rows in another order. A row that doesn't rotate has the
frequency 0, and every set of frequencies is a longrope.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from moerge.models.families.common import INPUTS
from moerge.models.families.family import Demand, Piece, head_dim

_STILL = 1e30
"""The divisor of a frequency that becomes 0."""
STATIC = Demand(
    "rope_parameters.rope_type",
    ("default", "linear", "llama3", "yarn", "longrope"),
    "its frequencies change with every length of a text",
)
"""Requirement of `whole_head_rope`, and of Mellum."""


def whole_head_rope(config: PretrainedConfig) -> Mapping[str, Any]:
    """The rope of a whole head with the dense rope's frequencies and factor, and its original context."""
    rope, most = config.rope_parameters, int(config.max_position_embeddings)
    original = int(rope["original_max_position_embeddings"]) if rope["rope_type"] == "longrope" else most
    (short, factor), (long, _) = _frequencies(config), _frequencies(config, original + 1)
    published = {
        "rope_type": "longrope",
        "rope_theta": rope["rope_theta"],
        "short_factor": _divisors(short, config),
        "long_factor": _divisors(long, config),
        "factor": most / original,
        "attention_factor": factor,
        "original_max_position_embeddings": original,
    }
    return {"rope_parameters": published, "original_max_position_embeddings": original}


def _frequencies(config: PretrainedConfig, length: int | None = None) -> tuple[Tensor, float]:
    """The frequencies of a text of so many tokens, by default a short one, and the factor of cosines and sines."""
    rope = config.rope_parameters
    if rope["rope_type"] != "default":
        frequencies, factor = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, None, seq_len=length)
        return frequencies.double(), float(factor)
    rows = int(head_dim(config) * rope.get("partial_rotary_factor", 1.0))
    return rope["rope_theta"] ** -(torch.arange(0, rows, 2, dtype=torch.float64) / rows), 1.0


def _divisors(frequencies: Tensor, config: PretrainedConfig) -> list[float]:
    """The divisors, [d / 2], of a whole head's frequencies."""
    rows = head_dim(config)
    whole = config.rope_parameters["rope_theta"] ** -(torch.arange(0, rows, 2, dtype=torch.float64) / rows)
    still = [_STILL] * (len(whole) - len(frequencies))
    return [*(whole[: len(frequencies)] / frequencies).tolist(), *still]


def turned(rows: Tensor, config: PretrainedConfig, *, interleaved: bool) -> Tensor:
    """The rows of queries or keys, [heads x d, ...], in the order of a class that rotates whole heads.

    Rows that don't rotate are divided by the factor of cosines and sines, which that class multiplies all rows by.

    Args:
        interleaved: the dense class rotates rows 2 i and 2 i + 1 together, otherwise i and i + r / 2.
    """
    size, (frequencies, factor) = head_dim(config), _frequencies(config)
    rotating, half = 2 * len(frequencies), size // 2
    pairs = torch.arange(rotating)
    first, second = (pairs[::2], pairs[1::2]) if interleaved else pairs.chunk(2)
    rest = torch.arange(rotating, size).chunk(2) if rotating < size else (pairs[:0], pairs[:0])
    result: Tensor = rows.unflatten(0, (-1, size))[:, torch.cat([first, rest[0], second, rest[1]])]
    if factor != 1.0:
        result[:, len(first) : half] /= factor
        result[:, half + len(first) :] /= factor
    return result.flatten(0, 1)


def turned_pieces(*, interleaved: bool) -> dict[str, tuple[Piece, ...]]:
    """The pieces of separate query and key projections, and of their biases."""
    names = [f"{module}.{part}" for module in INPUTS[:2] for part in ("weight", "bias")]
    return {name: (Piece(name, partial(turned, interleaved=interleaved)),) for name in names}
