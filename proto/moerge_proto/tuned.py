"""Tuned models: folders of `moerge tune`, which nobody publishes."""

from typing import Literal

from pydantic import ValidationError

from moerge_proto.digests import Digest
from moerge_proto.messages import Message
from moerge_proto.versions import Lineage


class Build(Message):
    """Software versions and device of a training."""

    moerge: str
    torch: str
    transformers: str
    device: Literal["cpu", "cuda"]


class TunedModel(Message):
    """All inputs of a version that was trained on pooled text of its domains; the folder's moerge.json.

    `parent_files`: name -> SHA-256 of the parent's weights, config and tokenizer. `options`: all of the recipe's that
    apply. `tokens`: of the training. `texts`: domain -> digest of its documents' digests. `weights`: domain -> weight
    in the mixture. `workers`: number of training processes.
    """

    pooled_text: Literal[True] = True
    parent: Lineage
    parent_files: dict[str, Digest]
    recipe: str
    options: dict[str, float | str]
    tokens: int
    texts: dict[str, Digest]
    weights: dict[str, float]
    context: int
    precision: Literal["float32", "bfloat16"]
    accumulate: int
    workers: int
    seed: int
    build: Build


def tuned(content: str | bytes) -> TunedModel | None:
    """The tuned model in a moerge.json; None for other content."""
    try:
        return TunedModel.model_validate_json(content)
    except ValidationError:
        return None
