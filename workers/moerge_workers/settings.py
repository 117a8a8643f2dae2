"""A worker's settings."""

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from moerge_proto.digests import Name
from moerge_proto.statistics_file import StatisticsSettings


class Settings(BaseModel):
    """Everything that a worker can be told.

    Attributes:
        coordinator: its address.
        token: the owner's bearer token; never printed.
        domain: the domain to contribute for.
        expert: folder of the domain's dense checkpoint.
        data: paths, globs, folders and fsspec URLs of documents.
        text_field: field or column with a document's text.
        chat: field or column with a document's messages, read through the tokenizer's chat template; None reads texts.
        chat_turns: whose tokens count, in a conversation.
        bad_share: of all documents, that may be unreadable; they are skipped.
        tuning_share: of all documents, that choose lambda; with 0 there are none, and nothing is sent of them.
        held_out_share: of all documents, that nothing is sent of.
        trunk_contribution: whether grams and token counts of the expert itself may leave, for better trunks.
        rare_below: counts of tokens that stood fewer times are withheld from a trunk contribution.
        home: folder of the worker's key, journals and downloads.
        license: SPDX identifier of the expert's licence.
        slots: Ray actors, one thread each, and on `device` "cuda" one GPU each.
        device: torch device that the model runs on.
        ray_address: an existing cluster of the owner's; None starts a local one.
        max_stray: how far a trunk's tensor may be from the expert's own, as a share of its norm.
        once: stop after one contribution instead of waiting for the next trunk.
        journal_seconds: at most every so many seconds the journal is written.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    coordinator: str
    token: str = Field(repr=False)
    domain: Name
    expert: Path
    data: list[str] = Field(min_length=1)
    text_field: str = "text"
    chat: str | None = None
    chat_turns: Literal["all", "assistant"] = "all"
    bad_share: float = Field(default=0.01, ge=0, lt=1)
    tuning_share: float = Field(default=0.0, ge=0, lt=1)
    held_out_share: float = Field(default=0.0, ge=0, lt=1)
    trunk_contribution: bool = False
    rare_below: int = Field(default=10, ge=0)
    home: Path
    license: str = "unknown"
    slots: int = Field(default=1, ge=1)
    device: Literal["cpu", "cuda"] = "cpu"
    ray_address: str | None = None
    max_stray: float = Field(default=1.0, gt=0)
    once: bool = False
    journal_seconds: float = Field(default=5.0, ge=0)
    statistics: StatisticsSettings = StatisticsSettings()

    @model_validator(mode="after")
    def _leaves_statistics(self) -> Self:
        if self.tuning_share + self.held_out_share >= 1:
            raise ValueError("tuning_share and held_out_share must leave documents for the statistics")
        return self
