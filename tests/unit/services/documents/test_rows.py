"""A text with a token that the expert's embedding has no row for is refused by its place, before any pass."""

import json
from pathlib import Path

import pytest

from moerge.documents.corpus import Corpus
from moerge.errors import MoergeError
from moerge.merging.prompts import Prompts, checked
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import DenseExpert
from support.models import VOCAB, expert, tokenizer

LAST = "[PAD]"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An expert whose tokenizer got a token that the model wasn't resized for."""
    result = expert(tmp_path_factory.mktemp("rows") / "law", 1, num_hidden_layers=1)
    own = tokenizer([f"<{number}>" for number in range(VOCAB - 259)] + [LAST])
    own.chat_template = f"{{{{ messages[0].content }}}}{LAST}"
    own.save_pretrained(result)
    assert own.convert_tokens_to_ids(LAST) == VOCAB
    return result


def corpus(folder: Path, path: Path, *texts: str, **settings: str) -> Corpus:
    path.write_text("".join(f"{json.dumps({'text': text})}\n" for text in texts))
    return Corpus([str(path)], DenseFiles(folder), **settings)  # type: ignore[arg-type]


def test_a_token_without_a_row_is_named_by_file_and_line(folder: Path, tmp_path: Path) -> None:
    read = corpus(folder, tmp_path / "a.jsonl", "fine", f"a {LAST}")
    for tokens in (read.read, lambda: [read.encode(document) for _, _, document in read.documents()]):
        with pytest.raises(
            MoergeError, match=rf"has {VOCAB} rows, none for the token '\[PAD\]' \(id {VOCAB}\)"
        ) as caught:
            tokens()
        assert caught.value.where == f"{tmp_path}/a.jsonl, line 2"
        assert "resize_token_embeddings" in caught.value.todo


def test_the_last_row_is_one_and_other_texts_are_read(folder: Path, tmp_path: Path) -> None:
    assert len(list(corpus(folder, tmp_path / "a.jsonl", "fine", f"a <{VOCAB - 260}>").read().documents())) == 2


def test_a_token_of_a_chat_template_is_found_before_texts_are_written(folder: Path) -> None:
    with pytest.raises(MoergeError, match="none for the token") as caught:
        checked(DenseExpert("law", folder), Prompts(["a"], 10), 32)
    assert caught.value.where == "`prompt` law"
