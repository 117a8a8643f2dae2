"""An expert's small JSON files, and their published parts: no reference to code, no odd decoding."""

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from math import inf
from pathlib import Path
from typing import Any

from moerge.errors import CheckpointError, MoergeError
from moerge.files import json_object
from moerge.models.config import largest_id
from moerge.models.dense_files import DenseFiles
from moerge.models.families.family import TOKEN_IDS
from moerge.models.tokenizer import JSON, MAX_BYTES
from moerge_proto.version_files import GENERATION, SPECIAL_TOKENS, TEMPLATE, TOKENIZER

_CODE = {"auto_map", "code_revision", "custom_generate", "custom_pipeline", "custom_pipelines", "trust_remote_code"}
"""Keys that make libraries load foreign code."""
_OF_USE = {
    *("backend", "chat_template", "clean_up_tokenization_spaces", "is_local", "local_files_only", "max_length"),
    *("model_max_length", "name_or_path", "pad_to_multiple_of", "pad_token_type_id", "padding_side"),
    *("processor_class", "stride", "truncation_side", "truncation_strategy"),
}
"""Keys of tokenizer_config.json on which no id depends."""
_LISTS = ("additional_special_tokens", "extra_special_tokens")
ADDED = "added_tokens.json"


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 2**31


def _length(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= 2**20


def _ids(value: object) -> bool:
    ids = value if isinstance(value, list) else [value]
    return all(item is None or (isinstance(item, int) and not isinstance(item, bool)) for item in ids)


_DECODING: dict[str, Callable[[object], bool]] = {
    **dict.fromkeys(TOKEN_IDS, _ids),
    **dict.fromkeys(("temperature", "top_k", "top_p", "min_p", "repetition_penalty"), _number),
    **dict.fromkeys(("max_length", "max_new_tokens"), _length),
    **dict.fromkeys(("do_sample", "use_cache", "_from_model_config"), lambda value: isinstance(value, bool)),
    **dict.fromkeys(("output_attentions", "output_hidden_states"), lambda value: value is False),
    "transformers_version": lambda value: isinstance(value, str),
}
"""The published keys of generation_config.json, with the check of each value."""


def require_side_files(model: DenseFiles) -> None:
    """Requires readable small files, of those that are published in part; CheckpointError names the file."""
    for name in (GENERATION, TOKENIZER, SPECIAL_TOKENS):
        if (path := model.side_file(name)).is_file():
            json_object(path, MAX_BYTES)
    chat_template(model)


def published_generation(model: DenseFiles, rows: float = inf) -> str | None:
    """The text of generation_config.json with only the keys for decoding, and no token id from `rows` on.

    None without such a file.
    """
    path = model.side_file(GENERATION)
    if not path.is_file():
        return None

    def known(key: str, value: object) -> bool:
        if key not in _DECODING or not (value is None or _DECODING[key](value)):
            return False
        return not key.endswith("_token_id") or largest_id(value) < rows

    return _text(path, known)


def published_tokenizer(path: Path, removed: Collection[str] = ()) -> bytes:
    """The bytes of a tokenizer file, without references to code, a second chat template, and the `removed` tokens."""
    if path.name in (TOKENIZER, SPECIAL_TOKENS):
        hidden = _CODE | ({"chat_template"} if path.with_name(TEMPLATE).is_file() else set())
        kept = _text(path, lambda key, value: key not in hidden)
        if removed:
            kept = json.dumps(_without(json.loads(kept), removed), indent=2) + "\n"
        return kept.encode()
    if removed and path.name in (JSON, ADDED):
        content = json.loads(path.read_bytes())
        if path.name == ADDED:
            content = {token: id_ for token, id_ in content.items() if token not in removed}
        else:
            content["added_tokens"] = [item for item in content["added_tokens"] if item["content"] not in removed]
        return json.dumps(content, ensure_ascii=False).encode()
    return path.read_bytes()


def named_tokens(settings: Mapping[str, Any]) -> Iterator[str]:
    """The special tokens that tokenizer settings name, in order."""
    for key, value in settings.items():
        if key.endswith("_token") or key in _LISTS:
            yield from (text for item in _several(value) if isinstance(text := _token(item), str))


def _without(settings: Mapping[str, Any], removed: Collection[str]) -> dict[str, Any]:
    """Tokenizer settings that don't name the `removed` tokens."""
    result = dict[str, Any]()
    for key, value in settings.items():
        if key == "added_tokens_decoder":
            value = {id_: item for id_, item in value.items() if _token(item) not in removed}
        elif key in _LISTS and isinstance(value, list):
            value = [item for item in value if _token(item) not in removed]
        elif key.endswith("_token") and _token(value) in removed:
            continue
        result[key] = value
    return result


def _token(item: object) -> object:
    """The text of a token, as settings write it."""
    return item.get("content") if isinstance(item, Mapping) else item


def _several(value: object) -> list[object]:
    """The tokens of a setting: one, a list, or a mapping of names to tokens."""
    if isinstance(value, dict) and "content" not in value:
        return [*value.values()]
    return value if isinstance(value, list) else [value]


def tokenizer_settings(model: DenseFiles) -> dict[str, Any]:
    """The settings of tokenizer_config.json on which ids may depend."""
    path = model.side_file(TOKENIZER)
    content = json_object(path, MAX_BYTES) if path.is_file() else {}
    return {key: value for key, value in content.items() if key not in _OF_USE}


def chat_template(model: DenseFiles) -> str:
    """The chat template that transformers uses, several as JSON; empty without one."""
    path = model.side_file(TEMPLATE)
    try:
        if path.is_file():
            return path.read_bytes().decode()
    except ValueError as error:
        raise CheckpointError(f"can't be read as text: {error}", where=str(path)) from error
    path = model.side_file(TOKENIZER)
    result = json_object(path, MAX_BYTES).get("chat_template") if path.is_file() else None
    return result if isinstance(result, str) else json.dumps(result, sort_keys=True) if result else ""


def chat_model(name: str, models: Mapping[str, DenseFiles]) -> DenseFiles:
    """The model of that name, for its chat template.

    Raises:
        MoergeError: it has none, and which models have one; or it lacks tokens of another model.
    """
    known = [each for each, model in models.items() if chat_template(model)]
    if name not in known:
        problem = f"{name!r} has no chat template" if name in models else f"no model is named {name!r}"
        todo = f"name one with a chat template: {', '.join(known)}" if known else "omit it: no model has one"
        raise MoergeError(problem, where="`chat_template`", todo=todo)
    sizes = {each: int(model.config.vocab_size) for each, model in models.items()}
    largest = max(sizes, key=sizes.__getitem__)
    if sizes[name] < sizes[largest]:
        problem = f"the tokenizer of {name!r} has {sizes[name]:,} tokens, that of {largest!r} {sizes[largest]:,}"
        raise MoergeError(problem, where="`chat_template`", todo=f"name {largest}")
    return models[name]


def _text(path: Path, kept: Callable[[str, object], bool]) -> str:
    """The file's original text if all of its keys are kept, otherwise the kept keys."""
    content = json_object(path, MAX_BYTES)
    some = {key: value for key, value in content.items() if kept(key, value)}
    if len(some) == len(content):
        return path.read_bytes().decode()
    return json.dumps(some, indent=2) + "\n"
