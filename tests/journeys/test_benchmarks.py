"""A consumer compares a version with its experts and seed on public tasks, with and without moerge's command."""

import json
import shutil
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForCausalLM, AutoTokenizer

from moerge_lab.benchmarks.harness import answer
from moerge_lab.benchmarks.models import Model
from moerge_lab.benchmarks.settings import Settings, asked
from support.benchmarks import questions
from support.models import expert
from support.processes import run_command
from support.terminal import Shell
from support.transcripts import Part
from support.versions import published

pytestmark = pytest.mark.slow
HOOKS = """
from moerge_lab.benchmarks.task_files import hooks

kinds = ["length_constraints:number_sentences", "change_case:capital_word_frequency"]
limits = [{"num_sentences": 2, "relation": "at least"}, {"capital_frequency": 1, "capital_relation": "at least"}]
asked = {"key": 1, "prompt": "Write.", "instruction_id_list": kinds, "kwargs": limits}
found = [hooks.followed(asked, [text])["prompt_level_strict_acc"] for text in ("One. TWO.", "ONE", "One. Two.")]
assert found == [1, 0, 0], found
"""

ENDINGS = (
    "Please choose the correct ending to complete the given sentence: Boats: [header] How to sail [title] Find wind. "
    "[step] Look at leaves.\n\nEnding1: [substeps] Leaves move. Ending2: They wait. [title] Ask. Ending3: He sits. "
    "Ending4: It is dry.\n\nAnswer format: ending1/ending2/ending3/ending4"
)
PUBLIC: dict[str, list[dict[str, Any]]] = {
    "hellaswag.test.json": [{"instruction": ENDINGS, "input": "", "output": "ending2", "answer": "ending2"}] * 2,
    "lambada_test.jsonl": [{"text": "She looked for the key.\n\n\"Here,\" said Tom, and held up the key"}] * 2,
    **{
        f"arc-multilingual.{code}.jsonl": [
            {
                "id": f"MCAS_{code}", "instruction": f"{code}?", "option_a": "a", "option_b": "b", "option_c": "c",
                "option_d": "d", "option_e": None, "answer": "C",
            }
        ]
        for code in ("de", "es", "fr", "ru")
    },
    "ifeval.jsonl": [
        {
            "key": 1, "prompt": "Write.", "instruction_id_list": ["length_constraints:number_sentences"],
            "kwargs": [{"num_sentences": 2, "relation": "at least"}],
        }
    ] * 2,
}  # fmt: skip
"""File -> made-up records in the exact form of its public set."""
TEMPLATE = (
    "{{ bos_token }}{{ strftime_now('%Y-%m-%d') }}"
    "{% for message in messages %}[{{ message['role'] }}]{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def scores(folder: Path, task: str) -> Iterator[dict[str, Any]]:
    """The task's result for each model."""
    rows = json.loads((folder / "table.json").read_bytes())["tasks"]
    return iter(next(row["results"] for row in rows if row["task"] == task).values())


def test_a_version_of_equal_experts_scores_as_the_dense_model(tmp_path: Path) -> None:
    dense = expert(tmp_path / "code", 1)
    published([dense, dense], tmp_path / "made").rename(tmp_path / "merged")
    (tmp_path / "benchmarks").mkdir()
    for name in ("arc-easy", "piqa"):
        questions(tmp_path / "benchmarks" / f"{name}.test.json", 40)
    fewer = {" --expert law=law/ --base seed/": "", "piqa=law": "piqa=code"}  # each model costs a process
    with Shell(tmp_path) as person:
        with Part("docs/benchmarks.md", "Compare") as part:
            assert "sha256: 3f32a84716ca6d57" in person.types(part.next("moerge benchmark fetch"))
            said = person.types(part.next("moerge benchmark merged/", fewer))
            assert "piqa=code" in said
        own, version = scores(tmp_path / "scores", "arc-easy")
        assert 0 < own["value"] < 1
        assert version == own
        with Part("docs/benchmarks.md", "Without moerge") as part:
            person.types(part.next("lm_eval --model hf"))
        [bare] = (tmp_path / "bare").rglob("results*.json")
        assert json.loads(bare.read_bytes())["results"]["arc-easy"]["acc,none"] == own["value"]

    raw = tmp_path / "scores" / "raw"
    shutil.rmtree(raw / "version" / "piqa")
    kept = {path: path.stat().st_mtime_ns for path in [*raw.glob("code/*/*"), *raw.glob("version/arc-easy/*")]}
    tokenizer = tmp_path / "merged" / "tokenizer.json"
    tokenizer.unlink()
    tokenizer.write_text("{}")
    again: list[object] = ["benchmark", tmp_path / "merged", "--expert", f"code={dense}", "--tasks", "arc-easy,piqa"]
    again += ["--data", tmp_path / "benchmarks", "--out", tmp_path / "scores", "--limit"]
    failed = run_command(*again, 400)
    assert failed.returncode == 1
    assert "lm_eval failed at piqa of version" in failed.stderr
    assert str(raw / "version" / "piqa.log") in failed.stderr
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    refused = run_command(*again, 10)
    assert refused.returncode == 1
    assert "limit 400 instead of 10" in refused.stderr


def test_answers_are_judged_offline() -> None:
    done = run_command(script=HOOKS)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model with a chat template, whose tokenizer begins each text with a special token; and its raw results."""
    home = tmp_path_factory.mktemp("answered")
    model = expert(home / "chat", 1, apart=0.5)
    read: Any = AutoTokenizer.from_pretrained(model)
    read.chat_template = TEMPLATE
    first: Any = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", read.bos_token_id)])
    read.backend_tokenizer.post_processor = first
    read.save_pretrained(model)
    for name, records in PUBLIC.items():
        lines = json.dumps(records) if name.endswith(".json") else "".join(f"{json.dumps(row)}\n" for row in records)
        (home / name).write_text(lines)
    settings = Settings(home, limit=4, chat=True, answer_tokens=8)
    known = asked(["hellaswag", "lambada", "arc-multilingual", "ifeval"], settings)
    for name, item in known.items():
        answer(Model("chat", "expert", model), name, settings, item, home / "out")
    return model, home / "out" / "raw" / "chat"


def samples(folder: Path, task: str) -> list[dict[str, Any]]:
    """Each question's requests and answers, in order."""
    [path] = (folder / task).glob("samples_*.jsonl")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return sorted(rows, key=lambda row: int(row["doc_id"]))


def requests(row: dict[str, Any]) -> list[list[str]]:
    """The texts of a question's requests."""
    return [[given["arg_0"], given["arg_1"]] for given in row["arguments"].values()]


def test_public_forms_are_asked_as_their_sets_mean_them(answered: tuple[Path, Path]) -> None:
    asked_of = {name: samples(answered[1], name) for name in ("hellaswag", "lambada", "arc-multilingual")}
    assert requests(asked_of["hellaswag"][0]) == [
        ["Boats: How to sail. Find wind. Look at leaves.", f" {text}"]
        for text in ("Leaves move.", "They wait. Ask.", "He sits.", "It is dry.")
    ]
    [[context, word]] = requests(asked_of["lambada"][0])
    assert (context, word) == ('She looked for the key.\n\n"Here," said Tom, and held up the', " key")
    contexts = [requests(row)[0][0] for row in asked_of["arc-multilingual"]]
    assert contexts == [f"Question: {code}?\nAnswer:" for code in ("de", "es", "fr", "ru")]
    assert [request[1] for request in requests(asked_of["arc-multilingual"][0])] == [" a", " b", " c", " d"]
    assert [row["target"] for rows in asked_of.values() for row in rows[:1]] == ["1", " key", "2"]


def test_chat_template_is_applied_once(answered: tuple[Path, Path]) -> None:
    model, folder = answered
    read: Any = AutoTokenizer.from_pretrained(model)
    network: Any = AutoModelForCausalLM.from_pretrained(model)
    for row in samples(folder, "ifeval"):
        turn = [{"role": "user", "content": row["doc"]["prompt"]}]
        text = read.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
        text = text.replace(f"{date.today()}", "2024-07-26")
        assert row["arguments"]["gen_args_0"]["arg_0"] == text
        ids = read(text, add_special_tokens=False, return_tensors="pt")
        assert (ids["input_ids"] == read.bos_token_id).sum() == 1
        made = network.generate(**ids, max_new_tokens=8, do_sample=False)
        [[said]] = row["resps"]
        new = made[0, ids["input_ids"].shape[1] :]
        assert said == read.decode(new, skip_special_tokens=True)
    [path] = (folder / "ifeval").glob("results_*.json")
    [row] = json.loads(path.read_bytes())["configs"].values()
    assert row["generation_kwargs"]["max_gen_toks"] == 8
