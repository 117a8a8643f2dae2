"""The input of `moerge.scoring.route_text` for its parent process, without torch's and transformers' models."""

from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel

from moerge.errors import MoergeError
from moerge_proto.problems import ProblemType

PROGRAM = "moerge.scoring.route_text"
LONGEST_CONTEXT = 2048  # tokens; it bounds the activations
_PROGRAM_BYTES = 2**29  # Python with torch, and the answer


class TooLargeError(MoergeError):
    """The text, or the version, is too large for the limits."""

    kind = ProblemType.TOO_LARGE


class Job(BaseModel):
    """Route `text` through version `number` in `folder`, with at most `limit` bytes of memory."""

    folder: Path
    number: int
    text: str
    limit: int


def context_of(config: Mapping[str, object]) -> int:
    """The context in tokens for a model of this published config."""
    return min(_number(config, "max_position_embeddings"), LONGEST_CONTEXT)


def needed_bytes(weights: int, config: Mapping[str, object]) -> int:
    """An upper estimate of the memory for routing a text.

    The weights count twice, because a tensor and its file are in memory together. Activations are float32.

    Args:
        weights: bytes of the version's tensors.
        config: its config.json.
    """
    widths = [_number(config, name) for name in ("intermediate_size", "moe_intermediate_size") if name in config]
    per_token = 16 * _number(config, "hidden_size") + 4 * _number(config, "num_experts_per_tok") * max(widths)
    return _PROGRAM_BYTES + 2 * weights + 4 * context_of(config) * per_token


def _number(config: Mapping[str, object], name: str) -> int:
    return int(str(config[name]))
