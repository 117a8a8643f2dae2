"""Experts: dense checkpoints, one per domain, each by one owner."""

from datetime import datetime
from enum import StrEnum
from typing import Literal

from pydantic import Field, model_validator

from moerge_proto.digests import Digest, Name
from moerge_proto.messages import FileEntry, Message
from moerge_proto.problems import Problem
from moerge_proto.workflows import Workflow

Vocabulary = Literal["same", "pad"]
"""Whether experts must have the same vocabulary, or one may add tokens behind the other's."""


class ExpertState(StrEnum):
    """received -> ready, or refused with the reason; ready -> withdrawn."""

    RECEIVED = "received"
    READY = "ready"
    REFUSED = "refused"
    WITHDRAWN = "withdrawn"


class Fitted(Message):
    """Of which expert's MLPs an expert's are a fit, and to which trunk: two digests."""

    expert: Digest
    trunk: Digest


class NewExpert(Message):
    """Registers files as the expert of `domain`. `files` maps names in the folder to digests.

    They are uploaded before, or the coordinator fetches them: each lies below the address `source`, which must be one
    of those that the operator allows.

    With `trunk="keep"` the trunk stays, and the newcomer's owner alone contributes under it. With `remerge` the current
    trunk is merged anew, the same way, with this expert too, as soon as it is ready; then every owner is asked again.

    `redistribute`: whether owners of the other experts in a version may download it, with this expert's MLPs, to
    evaluate it. Registered again with another value, it changes; an operator can't set it.

    With `fitted` it is a fitted expert: the domain's expert with MLPs that its owner solved anew for a trunk. It is
    never merged into a trunk, and redistributed if that expert is.
    """

    domain: Name
    files: dict[str, Digest] = Field(min_length=1, max_length=1000)
    source: str | None = Field(default=None, max_length=1000)
    license: str = Field(default="unknown", pattern=r"^[A-Za-z0-9.+-]{1,64}$")
    """An SPDX identifier, such as Apache-2.0."""
    trunk: Literal["keep", "remerge"] = "keep"
    redistribute: bool = False
    fitted: Fitted | None = None

    @model_validator(mode="after")
    def _fitted_is_uploaded(self) -> "NewExpert":
        if self.fitted is not None and (self.source is not None or self.trunk == "remerge"):
            raise ValueError("fitted: it goes without a source, and with trunk 'keep'")
        return self


class Expert(Message):
    """An expert. `digest` names its files; `number` gives the order in which experts came; `fitted` is None if it was
    trained.

    While its files are still to be fetched from `source`, their sizes are 0 and the family is empty.
    """

    number: int
    digest: Digest
    domain: str
    owner: str
    license: str
    redistribute: bool
    family: str
    state: ExpertState
    problem: Problem | None
    files: list[FileEntry]
    source: str | None
    fitted: Fitted | None
    created: datetime
    withdrawn: datetime | None
    purged: datetime | None

    @property
    def trained(self) -> str:
        """The digest of the expert that was trained: its own, or of the one that it is fitted from."""
        return self.digest if self.fitted is None else self.fitted.expert


class Withdraw(Message):
    """Asks to withdraw an expert. With `serve=False`, versions that contain it are withheld from consumers at once."""

    serve: bool = True


class Withdrawal(Message):
    """What withdrawing an expert did; those that are fitted from it are withdrawn with it.

    `trunks` and `versions` still contain it: the trunks are retired, and `remerge` makes the one that takes the current
    one's place (None: that one didn't contain it, or nothing is left to merge). Versions go when they are retired.
    """

    expert: Expert
    trunks: list[Digest]
    versions: list[int]
    remerge: Workflow | None


class Purge(Message):
    """Asks to remove a withdrawn expert's files. `retire` also retires the versions that contain it (operator)."""

    retire: bool = False


class Purged(Message):
    """`removed` files of so many `bytes` are gone. `versions` still need the expert's files, and keep theirs."""

    removed: int
    bytes: int
    versions: list[int]
