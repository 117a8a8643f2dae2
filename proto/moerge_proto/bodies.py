"""Bodies: embedding, attention, norms but the last; routers depend on them. Heads: last norm, language model head."""

from datetime import datetime
from typing import Literal

from pydantic import JsonValue

from moerge_proto.digests import Digest, Name
from moerge_proto.messages import FileEntry, Message

BodyMethod = Literal["seed", "average", "weighted", "ties", "dare", "regmean"]
"""`seed`: a model's own, unchanged, the only one of a federation; the others merge experts, on one machine."""
HeadMethod = Literal["seed", "average", "regmean"]
"""`seed`: the seed's own head; `average`: the experts' mean; `regmean`: solved from the experts' head contributions."""


class Body(Message):
    """A registered seed's body in the dense family's own tensor names, so that a worker can add its own MLPs to it.

    The seed's head, parts and tokenizer are beside it, in files of their own. `source`: the seed's name, for people.
    `license`: an SPDX identifier. `config`: the settings of config.json that features depend on. `exponents`:
    fractional bits of gram and cross, per layer. `current`: whether new contributions are made under it.
    """

    digest: Digest
    family: str
    hidden_size: int
    layers: int
    config: dict[str, JsonValue]
    exponents: list[int]
    tensors: int
    files: list[FileEntry]
    source: str | None
    license: str
    current: bool
    created: datetime


class Contributors(Message):
    """Domains that have contributed to the routers under `body`, and those with ready parts for it that are `missing`.

    One whose expert was withdrawn is never missing.
    """

    body: Digest
    contributed: list[Name]
    missing: list[Name]
