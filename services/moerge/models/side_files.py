"""An expert's small JSON files, and their published parts: no reference to code, no odd decoding."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from moerge.errors import CheckpointError, MoergeError
from moerge.files import json_object
from moerge.models.dense_files import DenseFiles
from moerge_proto.version_files import GENERATION, SPECIAL_TOKENS, TEMPLATE, TOKENIZER

_MAX_BYTES = 2**20
_CODE = {"auto_map", "code_revision", "custom_generate", "custom_pipeline", "custom_pipelines", "trust_remote_code"}
"""Keys that make libraries load foreign code."""


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 2**31


def _length(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= 2**20


def _ids(value: object) -> bool:
    ids = value if isinstance(value, list) else [value]
    return all(item is None or (isinstance(item, int) and not isinstance(item, bool)) for item in ids)


_DECODING: dict[str, Callable[[object], bool]] = {
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), _ids),
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
            json_object(path, _MAX_BYTES)
    chat_template(model)


def published_generation(model: DenseFiles) -> str | None:
    """The text of generation_config.json with only the keys for decoding; None without such a file."""
    path = model.side_file(GENERATION)
    if not path.is_file():
        return None
    return _text(path, lambda key, value: key in _DECODING and (value is None or _DECODING[key](value)))


def published_tokenizer(path: Path) -> bytes:
    """The bytes of a tokenizer file, without references to code and without a second chat template."""
    if path.name not in (TOKENIZER, SPECIAL_TOKENS):
        return path.read_bytes()
    hidden = _CODE | ({"chat_template"} if path.with_name(TEMPLATE).is_file() else set())
    return _text(path, lambda key, value: key not in hidden).encode()


def chat_template(model: DenseFiles) -> str:
    """The chat template that transformers uses, several as JSON; empty without one."""
    path = model.side_file(TEMPLATE)
    try:
        if path.is_file():
            return path.read_bytes().decode()
    except ValueError as error:
        raise CheckpointError(f"can't be read as text: {error}", where=str(path)) from error
    path = model.side_file(TOKENIZER)
    result = json_object(path, _MAX_BYTES).get("chat_template") if path.is_file() else None
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
    content = json_object(path, _MAX_BYTES)
    some = {key: value for key, value in content.items() if kept(key, value)}
    if len(some) == len(content):
        return path.read_bytes().decode()
    return json.dumps(some, indent=2) + "\n"
