"""A domain's text is read and tokenised once, into a file, and every view of it has the documents of the files."""

import json
import tracemalloc
from functools import partial
from pathlib import Path

import pytest
from transformers import AutoConfig

from moerge.documents.corpus import FEW_DOCUMENTS, Corpus
from moerge.documents.fitting_sample import fitting_sample
from moerge.documents.splits import SplitRule
from moerge.errors import MoergeError
from moerge.models.dense_files import DenseFiles
from moerge.models.tokens import Tokens
from moerge_proto.statistics_file import StatisticsSettings
from support.models import small_settings, tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A config, and a tokenizer with a chat template."""
    chat_tokenizer = tokenizer()
    chat_tokenizer.chat_template = "{% for each in messages %}{{ each.role }}: {{ each.content }}\n{% endfor %}"
    chat_tokenizer.save_pretrained(tmp_path)
    AutoConfig.for_model("llama", **small_settings("llama")).save_pretrained(tmp_path)
    return tmp_path


def conversations(folder: Path, count: int) -> Path:
    turns = [
        [{"role": "user", "content": f"question {number}"}, {"role": "assistant", "content": f"answer {number}" * 3}]
        for number in range(count)
    ]
    path = folder / "talks.jsonl"
    path.write_text("".join(json.dumps({"talk": turn}) + "\n" for turn in turns))
    return path


def documents(folder: Path, count: int) -> Path:
    path = folder / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": f"document {number} " * 20}) + "\n" for number in range(count)))
    return path


@pytest.mark.parametrize("key", [None, b"owner"])
def test_the_file_has_the_streamed_documents_and_splits(folder: Path, key: bytes | None) -> None:
    rule = SplitRule(held_out_share=0.3, tuning_share=0.2, key=key)
    talks = str(conversations(folder, 60))
    corpus = Corpus([talks], DenseFiles(folder), rule, chat="talk", chat_turns="assistant")
    streamed = [(digest, split, corpus.encode(document)) for digest, split, document in corpus.documents()]
    entries = [(entry.digest, entry.split, entry.tokens()) for entry in corpus.read(context=16).documents()]
    assert entries == streamed
    assert {split for _, split, _ in entries} == {"statistics", "tuning", "held-out"}
    assert any(0 < tokens.count < len(tokens) for _, _, tokens in entries)


def test_views_are_the_documents_of_a_split(folder: Path) -> None:
    corpus = Corpus([str(documents(folder, 60))], DenseFiles(folder), SplitRule(held_out_share=0.3))
    named = [(digest, corpus.encode(item)) for digest, split, item in corpus.documents() if split == "statistics"]
    text, settings, expected = corpus.read(), StatisticsSettings(), [tokens for _, tokens in named]
    assert [list(text), list(text)] == [expected, expected]  # again, from the start
    assert len(list(text.held_out)) == 60 - len(expected) > 0
    assert list(text.part("tuning")) == []
    sample = fitting_sample([(digest, partial(Tokens, item.ids)) for digest, item in named], settings, 2_000, 3)
    assert text.sample(settings, 2_000, 3) == sample


@pytest.mark.parametrize(("count", "in_pieces"), [(FEW_DOCUMENTS - 1, True), (FEW_DOCUMENTS, False)])
def test_a_few_documents_are_cut_into_pieces(folder: Path, count: int, in_pieces: bool) -> None:
    corpus = Corpus([str(documents(folder, count))], DenseFiles(folder))
    lengths = [len(entry.tokens()) for entry in corpus.read(context=32).documents()]
    assert (len(lengths) > count, max(lengths) <= 32) == (in_pieces, in_pieces)
    assert len(list(corpus.read().documents())) == count


def test_an_unreadable_document_is_named_by_file_and_line(folder: Path) -> None:
    path = documents(folder, 3)
    path.write_text(path.read_text() + "not JSON\n")
    with pytest.raises(MoergeError, match="not JSON: Expecting value") as raised:
        Corpus([str(path)], DenseFiles(folder), bad_share=0).read(folder=folder)
    assert raised.value.where == f"{path}, line 4"
    assert {item.name for item in folder.iterdir()} >= {path.name}
    assert not [item for item in folder.iterdir() if item.name.startswith("tmp")]


def test_a_template_that_asks_for_the_date_is_told_once(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ strftime_now('%Y') }}{{ messages[0].content }}")
    said: list[str] = []
    corpus = Corpus([str(conversations(folder, 30))], DenseFiles(folder), chat="talk", say=said.append)
    for _ in range(2):
        texts = [document.text for _, _, document in corpus.documents()]
    assert texts[0] == "2024question 0"
    assert said == ["the chat template asks for the date; it gets 2024-07-26"]


def test_memory_does_not_grow_with_the_text(folder: Path) -> None:
    def peak(count: int) -> int:
        corpus = Corpus([str(documents(folder, count))], DenseFiles(folder))
        tracemalloc.start()
        try:
            text = corpus.read(folder=folder)
            assert sum(len(tokens) for tokens in text) > count * 200
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(100)  # imports
    assert peak(2_000) < peak(100) + 200_000  # of 500,000 tokens in 2 MB
