"""The comparison of experts' tokenizers: by their tokens, and by the ids of texts where files are written otherwise."""

import json
from collections.abc import Iterable, Mapping
from itertools import zip_longest
from math import inf
from typing import Any

from moerge.errors import CheckpointError, IncompatibleExpertError
from moerge.models.adapters import tokenizer_folder
from moerge.models.dense_files import DenseFiles
from moerge.models.side_files import tokenizer_settings
from moerge.models.tokenizer import JSON, PIECES
from moerge.models.tokenizer_probes import difference
from moerge_proto.experts import Vocabulary

_ADDED, _VOCABULARY, _MERGES = "added_tokens", "model.vocab", "model.merges"
_OF_USE = ("padding", "truncation")
"""Parts of tokenizer.json that are set at each use."""


def require_same_tokenizer(
    first: DenseFiles,
    other: DenseFiles,
    who: str,
    vocabulary: Vocabulary,
    others: str = "the other experts",
    texts: Iterable[str] = (),
) -> None:
    """Requires equal ids of every text; with "pad", one tokenizer may append tokens to the other.

    Vocabulary, merges and added tokens must be equal, but for tokens without a row in the embedding. Where other parts
    of the files differ, as after another version of transformers has saved them, the ids of many texts decide.

    Args:
        texts: further ones to compare, which are taken only then.

    Raises:
        IncompatibleExpertError: a token, or the ids of a text, differ; `who` is `other` in it, `others` is `first`.
        CheckpointError: a tokenizer can't be read.
    """
    if (found := _difference(first, other, vocabulary, texts)) is not None:
        where, why = found
        todo = f"use that of {others}; all experts of a model share it, token for token"
        raise IncompatibleExpertError(f"{who} has another tokenizer than {others}: {why}", where=where, todo=todo)


def _difference(
    first: DenseFiles, other: DenseFiles, vocabulary: Vocabulary, texts: Iterable[str]
) -> tuple[str, str] | None:
    """The place of a difference, and what it is."""
    ours, theirs = read_tokenizer(first), read_tokenizer(other)
    is_json = PIECES not in ours.keys() | theirs.keys()
    if is_json:
        one, two = tokens_of(ours, first.config.vocab_size), tokens_of(theirs, other.config.vocab_size)
        if one != two and not (vocabulary == "pad" and _extends(one, two)):
            token = min(one.items() ^ two.items(), key=lambda item: item[1])[0]
            part = _ADDED if ours[_VOCABULARY] == theirs[_VOCABULARY] else _VOCABULARY
            return f"{JSON}: {part}", f"{token!r} has {_id(two, token)}, not {_id(one, token)}"
        if (pair := _first_difference(zip_longest(ours.get(_MERGES, ()), theirs.get(_MERGES, ())))) is not None:
            return f"{JSON}: {_MERGES}", f"it merges {pair[1]}, not {pair[0]}"
        if (pair := _first_difference(zip(ours[_VOCABULARY], theirs[_VOCABULARY], strict=False))) is not None:
            return f"{JSON}: {_VOCABULARY}", f"it scores {pair[1]}, not {pair[0]}"
    if (ours, tokenizer_settings(first)) == (theirs, tokenizer_settings(other)):
        return None
    ids = difference(tokenizer_folder(first.folder), tokenizer_folder(other.folder), texts)
    return None if ids is None else (JSON if is_json else PIECES, str(ids))


def _first_difference(pairs: Iterable[tuple[object, object]]) -> tuple[object, object] | None:
    return next(((one, other) for one, other in pairs if one != other), None)


def _id(tokens: Mapping[str, int], token: str) -> str:
    return f"id {tokens[token]}" if token in tokens else "no id"


def tokens_of(tokenizer: Mapping[str, Any], rows: float = inf) -> dict[str, int]:
    """Token -> id of a tokenizer.json, without ids from `rows` on."""
    every = _ids(_VOCABULARY, tokenizer) | _ids(_ADDED, tokenizer)
    return {token: id_ for token, id_ in every.items() if id_ < rows}


def _ids(part: str, tokenizer: Mapping[str, Any]) -> dict[str, int]:
    tokens = tokenizer.get(part) or {}
    if isinstance(tokens, Mapping):
        if not all(isinstance(token, int) for token in tokens.values()):
            raise CheckpointError("a token id is not an integer", where=f"{JSON}: {part}")
        return dict(tokens)
    try:
        added = [(item["content"], item["id"]) if "content" in item else (item[0], n) for n, item in enumerate(tokens)]
        return {str(token): int(id_) for token, id_ in added}
    except (TypeError, ValueError, KeyError, IndexError) as error:
        raise CheckpointError(f"can't be read as a list of tokens: {error}", where=f"{JSON}: {part}") from error


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
    path = model.side_file(JSON)
    if path.is_file():
        try:
            content = dict(json.loads(path.read_text(encoding="utf-8")))
            fields = _as_written_now(content.pop("model"))
            parts = {name: value for name, value in content.items() if name not in _OF_USE}
            return {_VOCABULARY: {}, **parts, **{f"model.{key}": value for key, value in fields.items()}}
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            raise CheckpointError(f"can't be read as a tokenizer: {error}", where=str(path)) from error
    if (path := model.side_file(PIECES)).is_file():
        return {PIECES: path.read_bytes()}
    raise CheckpointError(f"expected {JSON} or {PIECES}; found neither", where=str(model.folder))
