"""Documents for a tokenizer: plain texts, and conversations through its chat template."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from transformers import PreTrainedTokenizerBase

from moerge.documents.chat_templates import TemplateRefusal, rendered
from moerge.documents.fields import kind_of, names_of
from moerge.documents.reader import as_text
from moerge.errors import MoergeError
from moerge.models.dense_files import DenseFiles
from moerge.models.tokens import Tokens

Turns = Literal["all", "assistant"]
_MARK = "\ue000{}\ue001"  # placeholder of a turn's content, from Unicode's private use area


@dataclass(frozen=True)
class Document:
    """A text as the model reads it.

    Tokens of the characters in `counted` (starts and ends) count; None: all. `rendered` text is a chat template's, with
    all special tokens. `place`: its file and line, for errors.
    """

    text: str
    counted: Sequence[tuple[int, int]] | None = None
    rendered: bool = False
    place: str = field(default="", compare=False)


def plain(value: object) -> Document:
    return Document(as_text(value))


def require_template(tokenizer: PreTrainedTokenizerBase) -> None:
    """Requires a chat template, and a tokenizer that reports its tokens' positions."""
    if not tokenizer.chat_template or not tokenizer.is_fast:
        problem = "the expert's tokenizer has no chat template" if tokenizer.is_fast else "expected a fast tokenizer"
        raise MoergeError(problem, where="`chat`", todo="add one to the expert's folder, or use `text_field`")


def conversation(value: Any, tokenizer: PreTrainedTokenizerBase, turns: Turns) -> Document:
    """Messages, each with `role` and `content`, through the tokenizer's chat template.

    In `assistant` turns the tokens of the content count, without the template's marks around it. Other values raise
    TypeError or ValueError, as does a template that changes a turn's content. One that exceeds a limit of `Renderer`
    raises MoergeError. No message is an empty document.
    """
    if not isinstance(value, list):
        raise TypeError(f"expected a list of messages, found {kind_of(value)}")
    if not value:
        return Document("", rendered=True)
    value = list(map(_message, value))
    text = as_text(_rendered(value, tokenizer))
    if turns == "all":
        return Document(text, rendered=True)
    marked = [{**message, "content": _MARK.format(number)} for number, message in enumerate(value)]
    around = _rendered(marked, tokenizer)
    for change in (str, str.strip):
        contents = [change(message["content"]) for message in value]
        places = _places(around, contents)
        if places is not None and text == _filled(around, contents, places):
            roles = [message["role"] for message in value]
            return Document(text, list(_spans(places, contents, roles)), rendered=True)
    raise ValueError("the chat template changes the content of a turn, so its tokens can't be found")


def _message(value: Any) -> dict[str, Any]:
    """A message with a text as content. An only part of type `text` is one; several would be joined in various ways."""
    if not isinstance(value, dict):
        raise TypeError(f"expected a message with role and content, found {kind_of(value)}")
    role, content = value.get("role"), value.get("content")
    if not isinstance(role, str):
        raise TypeError(f"a message has no role; its fields are {names_of(value)}")
    match content:
        case str():
            return value
        case [{"type": "text", "text": str(text)}]:
            return {**value, "content": text}
        case None:
            raise TypeError(f"a message of {role!r} has no content, such as a call of a tool")
        case [_, _, *_] if all(isinstance(part, dict) for part in content):
            raise TypeError(f"a message of {role!r} has {len(content)} parts; expected one text")
    raise TypeError(f"the content of a message of {role!r} is {kind_of(content)}, expected a text")


def _rendered(messages: list[dict[str, Any]], tokenizer: PreTrainedTokenizerBase) -> str:
    try:
        return rendered(tokenizer, messages)
    except TemplateRefusal as error:
        raise ValueError(f"the chat template refuses it: {error}") from error


def _places(around: str, contents: Sequence[str]) -> list[tuple[int, int]] | None:
    """The places of the marks in a rendered conversation; None unless each occurs once, in order."""
    marks = [_MARK.format(number) for number in range(len(contents))]
    if any(around.count(mark) != 1 for mark in marks):
        return None
    places = [(around.index(mark), around.index(mark) + len(mark)) for mark in marks]
    return places if all(one[1] <= other[0] for one, other in pairwise(places)) else None


def _filled(around: str, contents: Sequence[str], places: Sequence[tuple[int, int]]) -> str:
    pieces, end = [], 0
    for content, (start, stop) in zip(contents, places, strict=True):
        pieces += [around[end:start], content]
        end = stop
    return "".join([*pieces, around[end:]])


def _spans(
    places: Sequence[tuple[int, int]], contents: Sequence[str], roles: Sequence[str]
) -> Iterator[tuple[int, int]]:
    shift = 0
    for (start, stop), content, role in zip(places, contents, roles, strict=True):
        if role == "assistant":
            yield start + shift, start + shift + len(content)
        shift += len(content) - (stop - start)


def encode(tokenizer: PreTrainedTokenizerBase, document: Document) -> Tokens:
    """A document's tokens. A token counts if its first character does."""
    special, some = not document.rendered, document.counted is not None
    encoded = tokenizer(document.text, add_special_tokens=special, return_offsets_mapping=some, verbose=False)
    ids: list[int] = encoded["input_ids"]
    if document.counted is None:
        return Tokens(ids)
    spans = iter(document.counted)
    start, stop = next(spans, (0, 0))
    counted = []
    for first, last in encoded["offset_mapping"]:
        while first >= stop and stop:
            start, stop = next(spans, (0, 0))
        counted.append(start <= first < min(stop, last))
    return Tokens(ids, counted)


def require_rows(ids: Sequence[int], expert: DenseFiles, where: str) -> None:
    """Requires a row of the expert's embedding for each id."""
    rows = int(expert.config.vocab_size)
    if (id_ := next((id_ for id_ in ids if id_ >= rows), None)) is None:
        return
    token = expert.tokenizer.convert_ids_to_tokens(id_)
    what = f"the expert's embedding has {rows:,} rows, none for the token {token!r} (id {id_})"
    todo = (
        "remove the token from the text, from the chat template or from the tokenizer; or train the expert with a row "
        "for it, by model.resize_token_embeddings"
    )
    raise MoergeError(what, where=where, todo=todo)
