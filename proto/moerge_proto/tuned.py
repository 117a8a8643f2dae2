"""Tuned models: folders of `moerge tune`, which nobody publishes."""

from typing import Literal

from pydantic import Field, TypeAdapter, ValidationError

from moerge_proto.digests import Digest
from moerge_proto.messages import Message
from moerge_proto.versions import Lineage


class Build(Message):
    """Software versions and device of a training."""

    moerge: str
    torch: str
    transformers: str
    device: Literal["cpu", "cuda"]


class Training(Message):
    """The inputs of a training on pooled text, without the model.

    `options`: all of the recipe's that apply. `tokens`: of the training. `texts`: domain -> digest of its documents'
    digests. `weights`: domain -> weight in the mixture of texts. `workers`: number of training processes.
    """

    pooled_text: Literal[True] = True
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


class TunedModel(Training):
    """All inputs of a version that was trained on pooled text of its domains; the folder's moerge.json.

    `parent_files`: name -> SHA-256 of the parent's weights, config and tokenizer.
    """

    parent: Lineage
    parent_files: dict[str, Digest]


class MixtureMember(Message):
    """A dense model in a mixture. `files`: name -> SHA-256."""

    name: str
    files: dict[str, Digest]


class TunedMixture(Training):
    """All inputs of a mixture of dense models that was trained on pooled text; the folder's moerge.json.

    `members`: the seed model and the experts. `masked`: experts that are left out. `parent`: the mixture that it
    continues, with the digests of that folder's files.
    """

    members: list[MixtureMember]
    masked: list[str] = Field(default_factory=list)
    parent: "TunedMixture | None" = None
    parent_files: dict[str, Digest] = Field(default_factory=dict)


_EITHER: TypeAdapter[TunedModel | TunedMixture] = TypeAdapter(TunedModel | TunedMixture)


def tuned(content: str | bytes) -> TunedModel | TunedMixture | None:
    """The tuned model in a moerge.json; None for other content."""
    try:
        return _EITHER.validate_json(content)
    except ValidationError:
        return None
