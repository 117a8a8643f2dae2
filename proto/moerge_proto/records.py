"""`moerge.json`, the record of a folder's inputs: of a version or a tuned model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Discriminator, Tag, TypeAdapter, ValidationError

from moerge_proto.digests import Digest
from moerge_proto.messages import Message
from moerge_proto.versions import Lineage

RECORD_FILE = "moerge.json"


class Build(Message):
    moerge: str
    torch: str
    transformers: str
    device: Literal["cpu", "cuda"]


class Training(Message):
    """The inputs of a training on pooled text, without the model.

    `texts`: domain -> digest of its documents' digests. `weights`: domain -> weight in the mixture of texts. `workers`:
    number of training processes.
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
    """All inputs of `moerge tune` for a version. `parent_files`: SHA-256 of the parent's weights, config, tokenizer."""

    kind: Literal["tuned"] = "tuned"
    parent: Lineage
    parent_files: dict[str, Digest]

    @property
    def domains(self) -> list[str]:
        return self.parent.domains


class MixtureMember(Message):
    name: str
    digest: Digest


class TunedMixture(Training):
    """All inputs of `moerge tune` for a mixture of dense models.

    `members`: the seed model and the experts.
    """

    kind: Literal["mixture"] = "mixture"
    members: list[MixtureMember]


def _kind(value: object) -> str:
    """A version's lineage has no tag."""
    kind = value.get("kind") if isinstance(value, Mapping) else getattr(value, "kind", None)
    return str(kind or "version")


Record = Annotated[
    Annotated[Lineage, Tag("version")] | Annotated[TunedModel, Tag("tuned")] | Annotated[TunedMixture, Tag("mixture")],
    Discriminator(_kind),
]
"""The content of a `moerge.json`."""
_RECORD: TypeAdapter[Record] = TypeAdapter(Record)


def read_record(folder: Path) -> Record | None:
    """The record of a folder; None if it has none, or none of these."""
    try:
        return _RECORD.validate_json((folder / RECORD_FILE).read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValidationError):
        return None
