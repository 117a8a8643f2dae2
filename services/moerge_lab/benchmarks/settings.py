"""Settings of a run, and what it asks."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from moerge_lab.benchmarks.models import Precision
from moerge_lab.benchmarks.questions import chance, data_digest, data_files, questions
from moerge_lab.benchmarks.tasks import TASKS


@dataclass(frozen=True)
class Settings:
    """Settings of a run.

    Attributes:
        limit: questions of each task; None: all.
        answer_tokens: the longest answer that a model writes; None: the task's.
    """

    data: Path | None
    limit: int | None = None
    seed: int = 0
    chat: bool = False
    backend: Literal["hf", "vllm"] = "hf"
    precision: Precision | None = None
    device: Literal["cpu", "cuda"] = "cpu"
    batch_size: int | Literal["auto"] = 8
    answer_tokens: int | None = None


@dataclass(frozen=True)
class Asked:
    """A task's questions in this run: their number, the score of chance, and the digest of all data."""

    number: int
    chance: float
    digest: str


def asked(names: Sequence[str], settings: Settings) -> dict[str, Asked]:
    """Task -> what is asked. All questions are read, so that invalid data is an error before a model is loaded."""
    result = {}
    for name in names:
        items = questions(TASKS[name], settings.data)
        digest = data_digest(data_files(TASKS[name], settings.data))
        result[name] = Asked(len(items[: settings.limit]), chance(items[: settings.limit]), digest)
    return result
