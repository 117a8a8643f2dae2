"""Prompts in place of texts: the expert writes texts by them, with a seed, and they count as statistics only."""

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from moerge.documents.corpus import Corpus
from moerge.errors import MoergeError
from moerge.merging.arguments import sources
from moerge.merging.merge import MergeSettings, Source, merge
from moerge.merging.prompts import BATCH, Prompts, written
from moerge.merging.recipe import Recipe
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import DenseExpert, dense_folder
from moerge.progress import NoProgress, Progress
from support.merging import SMALL, source
from support.models import adapter, expert, texts, tokenizer

TEMPLATE = (
    "{% for turn in messages %}<{{ turn.role }}>{{ turn.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
TOKENS, CONTEXT = 600, 32  # two batches or three


class _CutError(Exception):
    """Ends a run anywhere."""


class Batches:
    """Progress that ends the run after so many steps."""

    def __init__(self, most: int = 1000) -> None:
        self.seen, self.most = 0, most

    @contextmanager
    def track(self, title: str, total: int, unit: str) -> Iterator["Batches"]:
        yield self

    def advance(self, n: int) -> None:
        if self.seen == self.most:
            raise _CutError
        self.seen += 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Experts of law and art, text of law, and an expert with a chat template."""
    root = tmp_path_factory.mktemp("prompts")
    for seed, domain in enumerate(("law", "art"), 1):
        expert(root / domain, seed, **SMALL)
    texts(root / "law.jsonl", 1, documents=90)
    shutil.copytree(root / "art", root / "chat")
    (root / "chat" / "chat_template.jinja").write_text(TEMPLATE)
    own = tokenizer()
    own.add_tokens(["<|turn|>"], special_tokens=True)
    own.save_pretrained(root / "chat")
    return root


def write(
    place: Path, work: Path, prompts: Sequence[str] = ("one", "number two"), progress: Progress | None = None
) -> Corpus:
    work.mkdir(exist_ok=True)
    given = Prompts(prompts, TOKENS)
    return written(DenseExpert("art", place), given, CONTEXT, work, "cpu", progress or NoProgress())


def lines(work: Path) -> list[str]:
    [path] = work.glob("generated-art-*.jsonl")
    return path.read_text().split("\n")[:-1]


def test_generated_texts_follow_prompts_up_to_requested_tokens(folder: Path, tmp_path: Path) -> None:
    corpus = write(folder / "art", tmp_path / "work")
    documents = [document.text for _, _, document in corpus.documents()]
    assert len(documents) % BATCH == 0
    assert [text.startswith(("one", "number two")[place % 2]) for place, text in enumerate(documents)] == [True] * len(
        documents
    )
    assert len(set(documents)) == len(documents)
    sizes = [json.loads(line)["tokens"] for line in lines(tmp_path / "work")]
    assert max(sizes) <= CONTEXT
    assert sum(sizes) >= TOKENS > sum(sizes[:-BATCH])


def test_interrupted_generation_resumes_with_the_same_texts(folder: Path, tmp_path: Path) -> None:
    prompts = ["one", "a separator of lines,\u2028"]
    write(folder / "art", tmp_path / "whole", prompts)
    with pytest.raises(_CutError):
        write(folder / "art", tmp_path / "cut", prompts, progress=Batches(1))
    begun, whole = lines(tmp_path / "cut"), lines(tmp_path / "whole")
    assert 0 < len(begun) < len(whole)
    rest = Batches()
    write(folder / "art", tmp_path / "cut", prompts, progress=rest)
    assert lines(tmp_path / "cut") == whole
    assert rest.seen == 1 + (len(whole) - len(begun)) // BATCH


def test_other_prompts_begin_anew(folder: Path, tmp_path: Path) -> None:
    write(folder / "art", tmp_path)
    write(folder / "art", tmp_path, ["other"])
    assert len(list(tmp_path.glob("generated-art-*.jsonl"))) == 2


def test_an_owner_s_way_of_sampling_changes_nothing(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "art", tmp_path / "art")
    settings = tmp_path / "art" / "generation_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "repetition_penalty": 5.0, "top_k": 1}))
    write(folder / "art", tmp_path / "plain")
    write(tmp_path / "art", tmp_path / "own")
    assert lines(tmp_path / "own") == lines(tmp_path / "plain")


def test_an_adapter_writes_the_texts_of_the_merged_model(folder: Path, tmp_path: Path) -> None:
    """With the ends of text of its base's generation_config.json."""
    base = Path(shutil.copytree(folder / "art", tmp_path / "base"))
    settings = base / "generation_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "eos_token_id": [257, *range(65, 200)]}))
    lora = adapter(tmp_path / "lora", base, seed=3)
    write(lora, tmp_path / "adapter")
    write(dense_folder(DenseFiles(lora), tmp_path / "dense"), tmp_path / "merged")
    assert lines(tmp_path / "adapter") == lines(tmp_path / "merged")


def test_with_a_chat_template_a_prompt_is_the_user_s_turn(folder: Path, tmp_path: Path) -> None:
    _, _, first = next(write(folder / "chat", tmp_path).documents())
    assert first.rendered
    assert first.text.startswith("<user>one<assistant>")
    turns = json.loads(lines(tmp_path)[0])["messages"]
    assert [turn["role"] for turn in turns] == ["user", "assistant"]
    assert first.text.endswith(turns[1]["content"])


@pytest.mark.parametrize(
    ("place", "prompts", "problem"),
    [
        ("art", ["one", " "], "a prompt is empty"),
        ("art", ["x" * CONTEXT], f"has {CONTEXT} tokens; a text has at most {CONTEXT}"),
        ("chat", ["</s>one"], "a prompt contains '</s>'"),
        ("chat", ["<|turn|>one"], r"a prompt contains '<\|turn\|>'"),
    ],
)
def test_unsuitable_prompts_are_refused(
    folder: Path, tmp_path: Path, place: str, prompts: list[str], problem: str
) -> None:
    with pytest.raises(MoergeError, match=problem) as raised:
        write(folder / place, tmp_path, prompts)
    assert raised.value.where == "`prompt` art"
    assert list(tmp_path.iterdir()) == []


def test_a_merge_mixes_texts_and_prompts_and_says_which(folder: Path, tmp_path: Path) -> None:
    given = [source(folder, "law"), Source(DenseExpert("art", folder / "art"), Prompts(["one"], TOKENS))]
    report = merge(given, tmp_path / "out", MergeSettings(scored_tokens=500, keep_statistics=True))
    assert [score is None for score in report.scores] == [False, True]
    assert report.counts[1].tokens >= TOKENS - 8
    assert any(line.startswith("not scored, because their experts wrote their text: art; ") for line in report.warnings)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "Statistics of text that the expert itself wrote by prompts: art." in card
    assert "Scores are measured later" not in card
    assert len(lines(tmp_path / "out.work")) % BATCH == 0


# --- options
def test_prompts_are_given_one_by_one_or_in_a_file(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "art.txt").write_text("first\n\nsecond = 2\n")
    experts, texts = {name: str(folder / name) for name in ("law", "art")}, {"law": [f"{folder}/law.jsonl"]}
    prompts = {"art": [f"@{tmp_path}/art.txt", "a=b"]}
    _, art = sources(Recipe(expert=experts, text=texts, prompt=prompts, prompt_tokens=100), print)
    assert art.corpus == Prompts(["first", "second = 2", "a=b"], 100)
    for name, prompt, result in (
        ("law", "x", "law has texts and prompts"),
        ("tax", "x", "no expert of tax"),
        ("art", "@missing.txt", "can't be read"),
    ):
        with pytest.raises(MoergeError, match=result) as raised:
            sources(Recipe(expert=experts, text=texts, prompt={name: [prompt]}), print)
        assert raised.value.where.startswith("`prompt`")
    with pytest.raises(MoergeError, match="no text of art"):
        sources(Recipe(expert=experts, text=texts), print)
