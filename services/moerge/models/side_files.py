"""An expert's small JSON files, and their publishable parts: no reference to code, no odd decoding."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from moerge.errors import CheckpointError
from moerge.files import require_small
from moerge.models.dense_files import DenseFiles

GENERATION, TOKENIZER = "generation_config.json", "tokenizer_config.json"
SPECIAL_TOKENS, TEMPLATE = "special_tokens_map.json", "chat_template.jinja"
_MAX_BYTES = 2**26
_CODE = {"auto_map", "code_revision", "custom_generate", "custom_pipeline", "custom_pipelines", "trust_remote_code"}
"""Keys that make a library load foreign code."""


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 2**31


def _length(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= 2**20


def _ids(value: object) -> bool:
    ids = value if isinstance(value, list) else [value]
    return all(item is None or (isinstance(item, int) and not isinstance(item, bool)) for item in ids)


def _flag(value: object) -> bool:
    return isinstance(value, bool)


def _off(value: object) -> bool:
    return value is False


_DECODING: dict[str, Callable[[object], bool]] = {
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), _ids),
    **dict.fromkeys(("temperature", "top_k", "top_p", "min_p", "repetition_penalty"), _number),
    **dict.fromkeys(("max_length", "max_new_tokens"), _length),
    **dict.fromkeys(("do_sample", "use_cache", "_from_model_config"), _flag),
    **dict.fromkeys(("output_attentions", "output_hidden_states"), _off),  # as save_pretrained writes them
    "transformers_version": lambda value: isinstance(value, str),
}
"""The published keys of generation_config.json, with the check of each value."""


def require_side_files(model: DenseFiles) -> None:
    """Requires that each of the partly published small files can be read.

    Raises:
        CheckpointError: names the file.
    """
    for name in (GENERATION, TOKENIZER, SPECIAL_TOKENS):
        if (path := model.side_file(name)).is_file():
            _read(path)
    chat_template(model)


def published_generation(model: DenseFiles) -> str | None:
    """The text of generation_config.json with only the keys for decoding; None without such a file.

    Raises:
        CheckpointError: it is not a JSON object.
    """
    path = model.side_file(GENERATION)
    if not path.is_file():
        return None
    return _text(path, lambda key, value: key in _DECODING and (value is None or _DECODING[key](value)))


def published_tokenizer(path: Path) -> bytes:
    """The bytes of a tokenizer file, without references to code and without a second chat template.

    Raises:
        CheckpointError: it is a file of settings, but not a JSON object.
    """
    if path.name not in (TOKENIZER, SPECIAL_TOKENS):
        return path.read_bytes()
    hidden = _CODE | ({"chat_template"} if path.with_name(TEMPLATE).is_file() else set())
    return _text(path, lambda key, value: key not in hidden).encode()


def chat_template(model: DenseFiles) -> str:
    """The chat template that transformers uses, several as JSON; empty without one.

    Raises:
        CheckpointError: it can't be read.
    """
    path = model.side_file(TEMPLATE)
    try:
        if path.is_file():
            return path.read_bytes().decode()
    except ValueError as error:
        raise CheckpointError(f"can't be read as text: {error}", where=str(path)) from error
    path = model.side_file(TOKENIZER)
    result = _read(path).get("chat_template") if path.is_file() else None
    return result if isinstance(result, str) else json.dumps(result, sort_keys=True) if result else ""


def _text(path: Path, kept: Callable[[str, object], bool]) -> str:
    """The file's original text if all of its keys are kept, otherwise the kept keys."""
    content = _read(path)
    some = {key: value for key, value in content.items() if kept(key, value)}
    if len(some) == len(content):
        return path.read_bytes().decode()
    return json.dumps(some, indent=2) + "\n"


def _read(path: Path) -> dict[str, Any]:
    require_small(path, _MAX_BYTES)
    try:
        content = json.loads(path.read_bytes().decode())
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"can't be read as JSON: {error}", where=str(path)) from error
    if not isinstance(content, dict):
        raise CheckpointError("not a JSON object", where=str(path))
    return content
