"""The tasks that come with moerge. Each has a file of this name in `task_files`, for lm_eval, and reads local data."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
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
    "code": "JSON Lines: `prompt`, `test`, `entry_point`",
    "instructions": "JSON Lines: `key`, `prompt`, `instruction_id_list`, `kwargs`",
    "texts": "JSON Lines: `text`, whose last word is asked",
    "prompts": "JSON Lines: `prompt`",
}
"""Form of the data -> its description."""


@dataclass(frozen=True)
class Task:
    """A task.

    Attributes:
        files: its data in the folder of `data`, joined; empty if they come with moerge.
        form: a key of `FORMS`.
        metric: the compared one, the mean of a number for each question; or what each answer becomes.
        source: where the public set comes from.
        digest: SHA-256 of that set, of its files joined; None: unknown.
        is_chat: whether questions may be put through a chat template.
        is_scored: whether answers are scored here; otherwise they are programs, which are only written.
    """

    name: str
    files: tuple[str, ...]
    form: Literal["choices", "endings", "blank", "numbers", "code", "instructions", "texts", "prompts"]
    metric: str
    source: str
    digest: str | None
    is_chat: bool = False
    is_scored: bool = True

    @property
    def is_written(self) -> bool:
        """Tell whether models write answers; otherwise they score given ones."""
        return self.form in ("numbers", "code", "instructions", "prompts")


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
        "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14", is_chat=True,
    ),
    Task(
        "humaneval", ("humaneval.jsonl",), "code", "program",
        "https://github.com/openai/human-eval, data/HumanEval.jsonl.gz, unpacked (MIT)",
        "1d49078ba3e2b196b9344535bef34a43021f038fad9561d6ee7c53450609a6a2", is_scored=False,
    ),
    Task(
        "ifeval", ("ifeval.jsonl",), "instructions", "prompt_level_strict_acc",
        "https://github.com/google-research/google-research, instruction_following_eval/data/input_data.jsonl "
        "(Apache-2.0)",
        "67ffeee0fcb87c317c5b08a2de85557b4a7e96ada6178aa645b4954fe4b53d49", is_chat=True,
    ),
    Task("refusals", (), "prompts", "refused", "moerge: twenty prompts, a small sample", None, is_chat=True),
)  # fmt: skip
TASKS: Mapping[str, Task] = {task.name: task for task in _ALL}
PAPER = ("gsm8k", "humaneval", "arc-multilingual", "ifeval")
"""The tasks of DUME's table 3."""


@cache
def is_of_harness(name: str) -> bool:
    """Tell whether lm_eval has a task or group of this name, whose questions then are on the hub."""
    spec = find_spec("lm_eval")
    if spec is None or spec.origin is None:
        return False
    line = re.compile(rf"^(task|group|tag): *['\"]?{re.escape(name)}['\"]? *$|^ *- {re.escape(name)} *$", re.MULTILINE)
    files = (Path(spec.origin).parent / "tasks").rglob("*.y*ml")
    return any(line.search(file.read_text(encoding="utf-8", errors="replace")) for file in files)
