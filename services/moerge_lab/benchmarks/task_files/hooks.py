"""The functions of the task files, which lm_eval calls in its process. It imports this module by its path."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from datasets import Dataset  # type: ignore[import-untyped]

from moerge.documents.chat_templates import DATE
from moerge.documents.template_environment import install
from moerge_lab.benchmarks.questions import questions
from moerge_lab.benchmarks.tasks import TASKS

install(DATE)  # of chat templates that ask for it: lm_eval loads its tasks before the model
Results = Callable[[dict[str, Any], Sequence[str]], Mapping[str, object]]


def dataset(name: str, data: str | None = None, **_: object) -> dict[str, Dataset]:
    """The questions of a task; `data`: the folder, from lm_eval's metadata, which has other things too."""
    return {"test": Dataset.from_list(questions(TASKS[name], None if data is None else Path(data)))}


def followed(question: dict[str, Any], answers: Sequence[str]) -> dict[str, float]:
    result = _ifeval()(question, answers)
    return {name: float(bool(result[name])) for name in ("prompt_level_strict_acc", "prompt_level_loose_acc")}


@cache
def _ifeval() -> Results:
    """lm_eval's judge of instructions, with counts by rules and a fixed guess of languages."""
    import nltk  # type: ignore[import-untyped]
    from langdetect import DetectorFactory  # type: ignore[import-untyped]

    DetectorFactory.seed = 0
    found = nltk.data.find
    nltk.data.find = lambda *_: ""  # or the import below downloads
    try:
        from lm_eval.tasks.ifeval import instructions_util, utils  # type: ignore[import-untyped]
    finally:
        nltk.data.find = found
    instructions_util.count_sentences = lambda text: len(instructions_util.split_into_sentences(text))
    nltk.word_tokenize = lambda text: re.findall(r"\w+(?:[-'\u2019]\w+)*", text)
    result: Results = utils.process_results
    return result
