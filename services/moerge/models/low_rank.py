"""The record of an expert of low rank, in its config.json."""

import json
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from moerge.models.stored import SINGLE
from moerge_proto.digests import Digest
from moerge_proto.experts import Rank
from moerge_proto.messages import Message

FIELD = "moerge_low_rank"
"""The field of config.json; models ignore it."""


class LowRank(Message):
    """How an expert's MLPs were made. `base` and `expert` are digests of whole experts, `weights` is that of its file.

    `least` and `most` are ranks of its matrices; 0: equal to the base's. `unchanged` counts the matrices that factors
    would not make smaller. `numbers` are those of the factors and unchanged matrices, of `whole` in all.
    """

    rank: Rank
    base: Digest
    expert: Digest
    weights: Digest
    least: int
    most: int
    unchanged: int
    numbers: int
    whole: int

    def __str__(self) -> str:
        ranks = f"{self.least} to {self.most}" if self.least < self.most else f"{self.most}"
        kept = f", {self.unchanged} matrices unchanged" if self.unchanged else ""
        return f"base + rank-{ranks} delta{kept}"


def has_record(folder: Path) -> bool:
    """Tell whether a folder's config.json has such a record."""
    path = folder / "config.json"
    return path.is_file() and FIELD.encode() in path.read_bytes()


def low_rank_of(folder: Path, files: Mapping[str, str]) -> LowRank | None:
    """The record of a dense checkpoint with these files, name -> SHA-256; an adapter's are the merged ones.

    None without one of exactly these weights, or if it changed no matrix.
    """
    if not has_record(folder):
        return None
    try:
        found = LowRank.model_validate(json.loads((folder / "config.json").read_bytes())[FIELD])
    except (ValueError, KeyError, TypeError, RecursionError, ValidationError):
        return None
    return found if files.get(SINGLE) == found.weights and found.numbers < found.whole else None
