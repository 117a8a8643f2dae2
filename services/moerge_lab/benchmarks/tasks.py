"""The tasks that come with moerge. Each has a file of this name in `task_files`, for lm_eval, and reads local data."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

TASK_FILES = Path(__file__).parent / "task_files"
VERSION = "moerge-1"
"""The version of every task's definition; also in `task_files/common.yaml`."""
_ADAPTERS = "https://github.com/AGI-Edgerunners/LLM-Adapters, dataset/{}/test.json"
_OKAPI = "https://github.com/laiviet/lm-evaluation-harness, datasets/m_arc/{de,es,fr,ru}_test.json (CC BY-NC 4.0)"
_CHOICES = "a JSON list, or JSON Lines, of questions with choices"
FORMS = {
    "choices": _CHOICES,
    "endings": f"{_CHOICES}; marks such as [title] are removed",
    "blank": f"{_CHOICES}; a question has one _ for the choice",
    "numbers": "JSON Lines: `question`, and `answer` with the number behind ####",
    "instructions": "JSON Lines: `key`, `prompt`, `instruction_id_list`, `kwargs`",
    "texts": "JSON Lines: `text`, whose last word is asked",
}
"""Form of the data -> its description."""


@dataclass(frozen=True)
class Task:
    """A task.

    Attributes:
        files: its data in the folder of `data`, joined.
        form: a key of `FORMS`.
        metric: the compared one, the mean of a number for each question.
        source: where the public set comes from.
        digest: SHA-256 of that set, of its files joined; None: unknown.
    """

    name: str
    files: tuple[str, ...]
    form: Literal["choices", "endings", "blank", "numbers", "instructions", "texts"]
    metric: str
    source: str
    digest: str | None

    @property
    def is_written(self) -> bool:
        """Tell whether models write answers, to questions that may pass a chat template; else they score given ones."""
        return self.form in ("numbers", "instructions")


_ALL = (
    Task(
        "arc-easy", ("arc-easy.test.json",), "choices", "acc", _ADAPTERS.format("ARC-Easy"),
        "3f32a84716ca6d57d38728bf80cc8117aecd17445c2cf29a68b571b810eb82dc",
    ),
    Task(
        "arc-challenge", ("arc-challenge.test.json",), "choices", "acc_norm", _ADAPTERS.format("ARC-Challenge"),
        "4a89ce368ae01a71d268d9851686738b2a0a1d84271116bab49a1dd2b48ecad7",
    ),
    Task(
        "arc-multilingual", tuple(f"arc-multilingual.{code}.jsonl" for code in ("de", "es", "fr", "ru")), "choices",
        "acc_norm", _OKAPI, "84c15e2567e76e3a07015a30c43ca4adf9d592920b8717ae1bd3516de88a9032",
    ),
    Task(
        "hellaswag", ("hellaswag.test.json",), "endings", "acc_norm",
        f"https://github.com/rowanz/hellaswag, data/hellaswag_val.jsonl (MIT); or {_ADAPTERS.format('hellaswag')}",
        None,
    ),
    Task(
        "openbookqa", ("openbookqa.test.json",), "choices", "acc_norm", _ADAPTERS.format("openbookqa"),
        "8479930f7b8a26052c78250280b5465a4016ca7fc806af440d0f37e243f3099e",
    ),
    Task(
        "piqa", ("piqa.test.json",), "choices", "acc", _ADAPTERS.format("piqa"),
        "3860d11b9b42e590b6b4bbc1643214d373ed0b0d4ac62fcc7bdceb8e044ad141",
    ),
    Task(
        "winogrande", ("winogrande.test.json",), "blank", "acc", _ADAPTERS.format("winogrande"),
        "6946f5209e7114c65c6d04f8f644c5a061af20d730b1cfe158fff3dc44076fb9",
    ),
    Task(
        "lambada", ("lambada_test.jsonl",), "texts", "acc",
        "https://openaipublic.blob.core.windows.net/gpt-2/data/lambada_test.jsonl",
        "4aa8d02cd17c719165fc8a7887fddd641f43fcafa4b1c806ca8abc31fabdb226",
    ),
    Task(
        "gsm8k", ("gsm8k.test.jsonl",), "numbers", "exact_match",
        "https://github.com/openai/grade-school-math, grade_school_math/data/test.jsonl (MIT)",
        "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
    ),
    Task(
        "ifeval", ("ifeval.jsonl",), "instructions", "prompt_level_strict_acc",
        "https://github.com/google-research/google-research, instruction_following_eval/data/input_data.jsonl "
        "(Apache-2.0)",
        "67ffeee0fcb87c317c5b08a2de85557b4a7e96ada6178aa645b4954fe4b53d49",
    ),
)  # fmt: skip
TASKS: Mapping[str, Task] = {task.name: task for task in _ALL}
PAPER = ("gsm8k", "arc-multilingual", "ifeval")
"""The tasks of DUME's table 3 but HumanEval, whose answers are programs to execute."""
