"""The comparison of experts' tokenizers, part by part."""

import json
from collections.abc import Mapping
from typing import Any

from moerge.errors import CheckpointError, IncompatibleExpertError
from moerge.models.dense_files import DenseFiles
from moerge_proto.experts import Vocabulary

_JSON, _PIECES = "tokenizer.json", "tokenizer.model"
_TOKENS = ("added_tokens", "model.vocab")


def require_same_tokenizer(
    first: DenseFiles, other: DenseFiles, who: str, vocabulary: Vocabulary, others: str = "the other experts"
) -> None:
    """Requires equal tokenizers, ignoring padding and truncation; with "pad", one may append tokens to the other.

    Raises:
        IncompatibleExpertError: names the file, and the part of tokenizer.json, that differ; `who` is `other` in it,
            `others` is `first`.
    """
    ours, theirs = read_tokenizer(first), read_tokenizer(other)
    for part in sorted(ours.keys() | theirs.keys()):
        if part in ("padding", "truncation") or ours.get(part) == theirs.get(part):
            continue
        if vocabulary == "pad" and part in _TOKENS and _extends(_ids(part, ours), _ids(part, theirs)):
            continue
        raise IncompatibleExpertError(
            f"{who} has another tokenizer than {others}",
            where=part if part == _PIECES else f"{_JSON}: {part}",
            todo=f"use that of {others}; all experts of a model share it, token for token",
        )


def _ids(part: str, tokenizer: Mapping[str, Any]) -> dict[str, int]:
    tokens = tokenizer.get(part) or {}
    if isinstance(tokens, Mapping):
        if not all(isinstance(token, int) for token in tokens.values()):
            raise CheckpointError("a token id is not an integer", where=f"{_JSON}: {part}")
        return dict(tokens)
    try:
        added = [(item["content"], item["id"]) if "content" in item else (item[0], n) for n, item in enumerate(tokens)]
        return {str(token): int(id_) for token, id_ in added}
    except (TypeError, ValueError, KeyError, IndexError) as error:
        raise CheckpointError(f"can't be read as a list of tokens: {error}", where=f"{_JSON}: {part}") from error


def _extends(one: Mapping[str, int], other: Mapping[str, int]) -> bool:
    """Tell whether one of two maps from token to id is the other, plus larger ids."""
    small, large = sorted((one, other), key=len)
    last = max(small.values(), default=-1)
    return small.items() <= large.items() and all(i > last for token, i in large.items() if token not in small)


def _as_written_now(model: Mapping[str, Any]) -> dict[str, Any]:
    """A tokenizer's model in the current form: without unset fields, and with merges as pairs."""
    fields = {key: value for key, value in model.items() if value is not None and value is not False}
    if "merges" in fields:
        fields["merges"] = [field.split(" ") if isinstance(field, str) else field for field in fields["merges"]]
    return fields


def read_tokenizer(model: DenseFiles) -> Mapping[str, Any]:
    """The parts of a tokenizer, by name; CheckpointError: it is missing, or can't be read."""
    path = model.side_file(_JSON)
    if path.is_file():
        try:
            content = dict(json.loads(path.read_text(encoding="utf-8")))
            fields = _as_written_now(content.pop("model"))
            return {**content, **{f"model.{key}": value for key, value in fields.items()}}
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            raise CheckpointError(f"can't be read as a tokenizer: {error}", where=str(path)) from error
    if (path := model.side_file(_PIECES)).is_file():
        return {_PIECES: path.read_bytes()}
    raise CheckpointError(f"expected {_JSON} or {_PIECES}; found neither", where=str(model.folder))
