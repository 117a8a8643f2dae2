"""The owner's choice of keepers: who must agree before a coordinator sees a sum with this owner's statistics."""

from pydantic import BaseModel, ConfigDict, Field, field_validator

from moerge_proto.masks import LEAST_OWNERS, KeeperKey
from moerge_proto.statistics_file import MAX_SUMMED


class Masks(BaseModel):
    """The table [masks] of worker.toml. With it router contributions are masked.

    Attributes:
        keepers: their public keys, from `moerge keeper init`. The coordinator needs the answers of all of them.
        owners: fewest owners of a sum.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    keepers: list[KeeperKey] = Field(min_length=1, max_length=10)
    owners: int = Field(default=LEAST_OWNERS, ge=LEAST_OWNERS, le=MAX_SUMMED)

    @field_validator("keepers")
    @classmethod
    def _sorted(cls, value: list[str]) -> list[str]:
        return sorted(set(value))
