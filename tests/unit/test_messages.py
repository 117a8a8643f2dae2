"""Messages are for people: no REST calls, headers or words of a validation library."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

from moerge_proto.experts import NewExpert
from moerge_proto.messages import Whole, plainly
from moerge_proto.versions import NewVersion, VersionChange

ROOT = Path(__file__).parents[2]
FORBIDDEN = re.compile(
    r"\b(GET|PUT|POST|PATCH|DELETE) /|/v1/|Authorization|X-Request-Id|Idempotency-Key"
    r"|Value error|Input should|String should|validation error|pydantic"
    r"|\bis meant\b|\bare found\b|can't be enough|operator merges one"
)
APART = {"messages.py"}  # it knows the words that it replaces
OPTION = re.compile(r"(?<![\w-])--[a-z]")
COMMAND = re.compile(r"\b(moerge|worker run|pip|git|ray|pg_dump|start it with)\b[^;,()]*")
OF_COMMANDS = {"cli", "commands.py", "options.py", "terminal.py"}
WITH_OTHER_DASHES = {"charts.py", "drawing.py", "gguf.py", "hosts.py", "main_job.py"}  # of CSS, and of commands


def text_of(node: ast.AST) -> str:
    """A string's text; of an f-string, with its expressions in braces."""
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) or "{…}" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def messages(path: Path, words: int = 3) -> Iterator[str]:
    """The strings of a module with so many words or more, without its docstrings."""
    tree = ast.parse(path.read_text())
    apart = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    apart |= {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if id(node) not in apart and len((text := text_of(node)).split()) >= words:
            yield text


def test_no_message_speaks_rest_or_python() -> None:
    result = {
        f"{path.relative_to(ROOT)}: {text}"
        for package in ("proto", "services", "workers", "coordinator")
        for path in (ROOT / package).rglob("*.py")
        if path.name not in APART
        for text in messages(path)
        if FORBIDDEN.search(text)
    }
    assert result == set()


def test_the_library_names_fields_not_options() -> None:
    result = {
        f"{path.relative_to(ROOT)}: {text}"
        for package in ("proto", "services", "workers", "coordinator")
        for path in (ROOT / package).rglob("*.py")
        if not (OF_COMMANDS | WITH_OTHER_DASHES) & set(path.parts)
        for text in messages(path, words=1)
        if OPTION.search(COMMAND.sub("", text))
    }
    assert result == set()


FILES = {"config.json": "0" * 64}
FITTED = {"expert": "1" * 64, "body": "2" * 64, "fitted": True}
ADAPTER = {"base": "2" * 64, "weights": "3" * 64, "settings": {}}


class _Count(BaseModel):
    count: Whole


@pytest.mark.parametrize(
    ("model", "fields", "expected"),
    [
        (VersionChange, {"tags": ["Not A Tag"]}, "expected the form ^"),
        (NewVersion, {"options": {"top_k": 0}}, "expected at least 1"),
        (NewVersion, {"options": {"top": 1}}, "there is no such field"),
        (NewExpert, {}, "it is missing"),
        (
            NewExpert,
            {"domain": "law", "files": FILES, "parts": FITTED, "adapter": ADAPTER},
            "adapter: expected the expert's own",
        ),
        (_Count, {"count": True}, "expected a valid integer"),
        (_Count, {"count": "many"}, "expected a valid integer"),
    ],
)
def test_a_validation_error_is_in_plain_words(model: type[BaseModel], fields: dict[str, object], expected: str) -> None:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(fields)
    text = plainly(caught.value.errors()[0])
    assert text.startswith(expected)
    assert not FORBIDDEN.search(text)
