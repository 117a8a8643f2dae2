"""The messages between moerge and the process of lm_eval."""

from typing import Literal

from pydantic import Field

from moerge_proto.messages import Message


class Job(Message):
    """One model's tasks.

    Attributes:
        model: arguments of lm_eval's model class.
        data: the folder with questions.
        out: the folder of the results.
        answer_tokens: of the longest answer; None: the task's.
    """

    backend: Literal["hf", "vllm"]
    model: dict[str, str]
    tasks: tuple[str, ...] = Field(min_length=1)
    data: str | None
    out: str
    limit: int | None
    seed: int
    batch_size: int | Literal["auto"]
    device: str
    chat: bool
    answer_tokens: int | None = None


class Said(Message):
    """Progress of a task in requests, or an error."""

    task: str = ""
    done: int = 0
    total: int = 0
    error: str = ""
    where: str = ""
    todo: str = ""


class Answered(Message):
    """A task's result.

    Attributes:
        version: of the task's definition.
        metric: with lm_eval's filter, as it prints them.
        values: the metric for each question, in order.
    """

    version: str
    metric: str
    values: tuple[float, ...] = Field(min_length=1)
