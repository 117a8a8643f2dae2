"""Side files: what is published of them, byte by byte, and from where no code is loaded."""

import ast
import json
from pathlib import Path

import pytest

from moerge.errors import CheckpointError
from moerge.models.dense_files import DenseFiles
from moerge.models.side_files import chat_template, published_generation, published_tokenizer, require_side_files
from moerge_proto.version_files import GENERATION, TOKENIZER
from support.models import expert

ROOT = Path(__file__).parents[4]
SOURCES = [path for part in ("proto", "services", "workers", "coordinator") for path in (ROOT / part).rglob("*.py")]


def test_honest_files_keep_their_bytes(tmp_path: Path) -> None:
    folder = expert(tmp_path / "expert", 1)
    assert (published_generation(DenseFiles(folder)) or "").encode() == (folder / GENERATION).read_bytes()
    for text in ('{"temperature":0.5,\r\n "eos_token_id": [1, 2], "top_p": null, "max_length": 4096}', "{}"):
        (folder / GENERATION).write_bytes(text.encode())
        assert published_generation(DenseFiles(folder)) == text
    assert published_tokenizer(folder / TOKENIZER) == (folder / TOKENIZER).read_bytes()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_beams", 4),
        ("custom_generate", "evil/code"),
        ("max_length", 10**9),
        ("temperature", float("nan")),
        ("temperature", 10**400),
        ("top_k", True),
        ("eos_token_id", "</s>"),
        ("output_attentions", True),
    ],
)
def test_what_is_no_usual_decoding_is_left_out(tmp_path: Path, key: str, value: object) -> None:
    (tmp_path / GENERATION).write_text(json.dumps({"bos_token_id": 1, key: value}))
    assert json.loads(published_generation(DenseFiles(tmp_path)) or "") == {"bos_token_id": 1}


def test_a_token_may_be_called_as_a_reference_to_code(tmp_path: Path) -> None:
    path = tmp_path / "added_tokens.json"
    path.write_text('{"auto_map": 300}')
    assert published_tokenizer(path) == path.read_bytes()


@pytest.mark.parametrize("name", [GENERATION, TOKENIZER, "special_tokens_map.json"])
@pytest.mark.parametrize("content", ["[]", "{", "[" * 100_000, '{"a": "\udcff"}'])
def test_files_that_are_no_objects_are_refused_by_name(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(CheckpointError) as caught:
        require_side_files(DenseFiles(tmp_path))
    assert name in caught.value.where


def test_the_chat_template_is_that_of_its_own_file_first(tmp_path: Path) -> None:
    assert chat_template(DenseFiles(tmp_path)) == ""
    (tmp_path / TOKENIZER).write_text('{"chat_template": [{"name": "tools", "template": "t"}]}')
    assert chat_template(DenseFiles(tmp_path)) == '[{"name": "tools", "template": "t"}]'
    (tmp_path / TOKENIZER).write_text('{"chat_template": "older"}')
    assert chat_template(DenseFiles(tmp_path)) == "older"
    (tmp_path / "chat_template.jinja").write_bytes(b"newer\r\n")
    assert chat_template(DenseFiles(tmp_path)) == "newer\r\n"
    assert published_tokenizer(tmp_path / TOKENIZER) == b"{}\n", "other readers would take the older one"


def test_every_auto_class_call_disables_remote_code() -> None:
    """Classes of transformers that read the code in a folder; others don't."""
    calls = [
        (path, node)
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".from_pretrained")
        if ast.unparse(node.func).startswith("Auto")
    ]
    open_calls = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path, node in calls
        if "trust_remote_code=False" not in [ast.unparse(keyword) for keyword in node.keywords]
    ]
    assert calls
    assert open_calls == []
