"""The anchor: the seed as one more expert of versions under its body, for text of no owner's domain."""

from typing import Annotated

from pydantic import Field

from moerge_proto.messages import Message

MAX_ANCHOR_BYTES = 2**22
"""Most bytes of an anchor's text."""


class NewAnchor(Message):
    """Asks for an anchor under the current body, the seed's. `texts`: documents of its statistics; None: the pool."""

    texts: list[Annotated[str, Field(min_length=1)]] | None = Field(default=None, min_length=1, max_length=10_000)
