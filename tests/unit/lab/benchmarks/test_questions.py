"""Questions are read from every form, and an invalid record is named."""

import hashlib
import json
from pathlib import Path

import pytest

from moerge.errors import MoergeError
from moerge_lab.benchmarks.questions import chance, data_digest, data_files, questions
from moerge_lab.benchmarks.tasks import PAPER, TASK_FILES, TASKS, VERSION

ADAPTERS = (
    "Please choose the correct answer to the question: Which is red: a sky or a rose?\n\n"
    "Answer1: a sky Answer2: a rose: it is Answer3: \n\nAnswer format: answer1/answer2/answer3"
)
BLANK = (
    "Please choose the correct answer to fill in the blank to complete the given sentence: The cup is in the box "
    "because _ is small.\n\nOption1: the cup Option2: the box Answer format: option1/option2"
)


def written(folder: Path, name: str, *records: object) -> Path:
    (folder / name).write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


def test_hellaswag_is_read_as_its_authors_publish_it(tmp_path: Path) -> None:
    record = {"activity_label": "Pet", "ctx": "A [title] cat sits", "endings": ["still. [step] It", "up"], "label": 1}
    written(tmp_path, "hellaswag.test.json", record)
    [found] = questions(TASKS["hellaswag"], tmp_path)
    assert found == {"question": "Pet: A. cat sits", "choices": ["still. It", "up"], "gold": 1}


def test_choices_come_in_three_forms(tmp_path: Path) -> None:
    written(
        tmp_path,
        "arc-easy.test.json",
        {"instruction": ADAPTERS, "answer": "answer2"},
        {"instruction": "Which? ", "option_a": "x", "option_b": "y", "option_c": None, "answer": "B"},
        {"question": "Which?", "choices": ["x", "y", "z", "u"], "answer": 3},
    )
    found = questions(TASKS["arc-easy"], tmp_path)
    first = {"question": "Which is red: a sky or a rose?", "choices": ["a sky", "a rose: it is", ""], "gold": 1}
    assert found == [
        first,
        {"question": "Which?", "choices": ["x", "y"], "gold": 1},
        {"question": "Which?", "choices": ["x", "y", "z", "u"], "gold": 3},
    ]
    assert chance(found) == pytest.approx((1 / 3 + 1 / 2 + 1 / 4) / 3)


def test_a_list_is_read_like_lines(tmp_path: Path) -> None:
    (tmp_path / "piqa.test.json").write_text(json.dumps([{"question": "a", "choices": ["b", "c"], "answer": 0}]))
    assert questions(TASKS["piqa"], tmp_path) == [{"question": "a", "choices": ["b", "c"], "gold": 0}]


def test_choices_stand_before_the_text_behind_a_blank(tmp_path: Path) -> None:
    written(tmp_path, "winogrande.test.json", {"instruction": BLANK, "answer": "option1"})
    [found] = questions(TASKS["winogrande"], tmp_path)
    start = "The cup is in the box because"
    assert found["choices"] == [f"{start} the cup", f"{start} the box"]
    assert (found["rest"], found["gold"]) == ("is small.", 0)


def test_languages_take_turns_and_have_one_digest(tmp_path: Path) -> None:
    task = TASKS["arc-multilingual"]
    for name, count in zip(task.files, (2, 1, 1, 1), strict=True):
        record = {"instruction": name, "option_a": "x", "option_b": "y", "answer": "A"}
        written(tmp_path, name, *[record] * count)
    found = [item["question"] for item in questions(task, tmp_path)]
    assert found == [*task.files, task.files[0]]
    joined = b"".join((tmp_path / name).read_bytes() for name in task.files)
    assert data_digest(data_files(task, tmp_path)) == hashlib.sha256(joined).hexdigest()


@pytest.mark.parametrize(
    ("name", "record"),
    [
        ("arc-easy", {"instruction": "Which?", "answer": "answer1"}),
        ("arc-easy", {"instruction": ADAPTERS.replace("Answer2", "Answer9"), "answer": "answer1"}),
        ("arc-easy", {"instruction": ADAPTERS, "answer": "answer7"}),
        ("arc-easy", {"question": "a", "choices": ["b", "c"], "answer": 2}),
        ("arc-easy", {"question": "a", "choices": ["b", "c"], "answer": True}),
        ("arc-easy", {"question": "a", "choices": ["b"], "answer": 0}),
        ("arc-easy", 7),
        ("hellaswag", {"activity_label": "Pet", "ctx": "A cat", "endings": ["sits", "is"], "label": ""}),
        ("winogrande", {"question": "no blank", "choices": ["b", "c"], "answer": 0}),
        ("gsm8k", {"question": "1 + 1"}),
    ],
)
def test_an_invalid_record_is_named(tmp_path: Path, name: str, record: object) -> None:
    task = TASKS[name]
    good = (
        {"question": "_ a", "choices": ["b", "c"], "answer": 0} if name != "gsm8k" else {"question": "", "answer": ""}
    )
    written(tmp_path, task.files[0], good, record)
    with pytest.raises(MoergeError, match=r"record 2: not a question of"):
        questions(task, tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_a_file_without_questions_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "gsm8k.test.jsonl").write_text(text)
    with pytest.raises(MoergeError, match=r"gsm8k\.test\.jsonl"):
        questions(TASKS["gsm8k"], tmp_path)


def test_missing_data_names_its_source(tmp_path: Path) -> None:
    with pytest.raises(MoergeError, match=r"gsm8k needs gsm8k\.test\.jsonl(.|\n)*grade-school-math"):
        questions(TASKS["gsm8k"], tmp_path)
    with pytest.raises(MoergeError, match="moerge benchmark fetch"):
        questions(TASKS["gsm8k"], None)


def test_every_task_has_a_definition_with_its_metric() -> None:
    assert {path.stem for path in TASK_FILES.glob("*.yaml")} == {"common", *TASKS}
    assert f"version: {VERSION}\n" in (TASK_FILES / "common.yaml").read_text()
    for name, task in TASKS.items():
        text = (TASK_FILES / f"{name}.yaml").read_text()
        assert f"task: {name}\ndataset_kwargs:\n  name: {name}\n" in text
        assert f"- metric: {task.metric}\n" in text
        assert "unsafe_code" not in text
    assert set(PAPER) <= set(TASKS)
