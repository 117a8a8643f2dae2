"""The questions of tasks, from local files."""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from moerge.errors import MoergeError
from moerge_lab.benchmarks.tasks import FORMS, Task

Question = dict[str, Any]
_ENDING = re.compile(r"\s*Answer format: (?P<labels>[a-z]+\d(?:/[a-z]+\d)*)\s*$")
_LETTERS = "abcde"
_TITLE = re.compile(r"(?<=[^\s.:!?])\s*\[title\]\s*")
_MARK = re.compile(r"\[(header|title|step|substeps)\]\s*")
_FIELDS = {
    "numbers": ("question", "answer"),
    "instructions": ("key", "prompt", "instruction_id_list", "kwargs"),
    "texts": ("text",),
}
"""Form -> the fields of a question."""


def data_files(task: Task, folder: Path | None) -> list[Path]:
    """The files with a task's questions.

    Raises:
        MoergeError: no folder is given, or it lacks one of them.
    """
    if folder is None:
        raise MoergeError(
            f"{task.name} needs a folder with its data", where="`data`", todo="run: moerge benchmark fetch"
        )
    paths = [folder / name for name in task.files]
    if missing := [path.name for path in paths if not path.is_file()]:
        todo = f"put it there; {task.name} comes from {task.source}"
        raise MoergeError(f"{task.name} needs {', '.join(missing)}", where=f"`data` {folder}", todo=todo)
    return paths


def data_digest(paths: Sequence[Path]) -> str:
    """SHA-256 of files, joined."""
    result = hashlib.sha256()
    for path in paths:
        result.update(path.read_bytes())
    return result.hexdigest()


def questions(task: Task, folder: Path | None) -> list[Question]:
    """A task's questions in order; those of several files take turns.

    With choices, a question has `question`, `choices` and `gold`, the index of the right one; otherwise the fields of
    its form.

    Raises:
        MoergeError: data is missing, or has another form; names file and record.
    """
    read = _READERS.get(task.form, _fields_of(task.form))
    parts = [list(_read(path, read, task)) for path in data_files(task, folder)]
    return [part[place] for place in range(max(map(len, parts))) for part in parts if place < len(part)]


def chance(asked: Sequence[Question]) -> float:
    """The score of a random choice; 0 of open questions."""
    return sum(1 / len(item["choices"]) if "choices" in item else 0 for item in asked) / len(asked)


def _read(path: Path, read: Callable[[Any], Question], task: Task) -> Iterator[Question]:
    todo = f"correct it; the form is {FORMS[task.form]}"
    for number, record in enumerate(_records(path, todo), 1):
        try:
            yield read(record)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            what = f"not a question of {task.name}: {type(error).__name__}: {error}"
            raise MoergeError(what, where=f"{path}: record {number}", todo=todo) from error


def _records(path: Path, todo: str) -> list[Any]:
    try:
        text = path.read_text(encoding="utf-8")
        records = (
            json.loads(text)
            if text.lstrip().startswith("[")
            else [*map(json.loads, filter(str.strip, text.split("\n")))]
        )
    except (OSError, ValueError) as error:
        raise MoergeError(f"can't be read: {error}", where=str(path), todo=todo) from error
    if not records:
        raise MoergeError("has no questions", where=str(path), todo=todo)
    return records


def _fields_of(form: str) -> Callable[[Any], Question]:
    return lambda record: {name: record[name] for name in _FIELDS[form]}


def _choice(record: Any) -> Question:
    """A question with choices: `choices`, `option_a` to `option_e`, HellaSwag's `endings`, or all in `instruction`."""
    if "choices" in record:
        result = {
            "question": str(record["question"]),
            "choices": [*map(str, record["choices"])],
            "gold": record["answer"],
        }
    elif "option_a" in record:
        options = [record.get(f"option_{letter}") for letter in _LETTERS]
        gold = _LETTERS.index(record["answer"].lower())
        result = {
            "question": record["instruction"].strip(),
            "choices": [item for item in options if item],
            "gold": gold,
        }
    elif "endings" in record:
        result = {
            "question": f"{record['activity_label']}: {record['ctx']}",
            "choices": [*map(str, record["endings"])],
            "gold": record["label"],
        }
    else:
        result = _instruction(record["instruction"], record["answer"])
    if type(result["gold"]) is not int or not 0 <= result["gold"] < len(result["choices"]):
        raise ValueError(f"no choice is the answer, {record.get('answer', record.get('label'))!r}")
    if len(result["choices"]) < 2:
        raise ValueError("fewer than two choices")
    return result


def _instruction(text: str, answer: str) -> Question:
    """Of LLM-Adapters: "Please choose …: QUESTION Answer1: … Answer2: … Answer format: answer1/answer2"."""
    if (ending := _ENDING.search(text)) is None:
        raise ValueError("`instruction` doesn't end with an answer format")
    labels = ending["labels"].split("/")
    parts = "".join(rf"\s*{label.capitalize()}: ?(.*?)" for label in labels)
    match = re.fullmatch(rf"(?s)[^:]*: ?(.*?){parts}\s*", text[: ending.start()])
    if match is None:
        raise ValueError(f"`instruction` doesn't have the choices {', '.join(labels)}")
    question, *choices = map(str.strip, match.groups())
    return {"question": question, "choices": choices, "gold": labels.index(answer)}


def _blank(record: Any) -> Question:
    """The choices are the text before the blank with each option; `rest` is the text behind it."""
    result = _choice(record)
    before, blank, rest = result["question"].partition("_")
    if not blank or not rest.strip():
        raise ValueError("the question has no _ with text behind it")
    return {**result, "choices": [before + choice for choice in result["choices"]], "rest": rest.strip()}


def _endings(record: Any) -> Question:
    """Without the marks of WikiHow, which are in some texts of HellaSwag."""
    result = _choice(record)
    return {**result, "question": _unmarked(result["question"]), "choices": [*map(_unmarked, result["choices"])]}


def _unmarked(text: str) -> str:
    return _MARK.sub("", _TITLE.sub(". ", text)).strip()


_READERS: dict[str, Callable[[Any], Question]] = {"choices": _choice, "blank": _blank, "endings": _endings}
