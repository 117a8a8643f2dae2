"""Configs: reading, equality of experts, the body's config and the published MoE's."""

import json
from collections.abc import Mapping, Sequence
from copy import copy
from math import inf
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, PretrainedConfig

from moerge.errors import CheckpointError, IncompatibleExpertError
from moerge.files import require_small
from moerge.models.adapters import Adapter, file_of, is_adapter
from moerge.models.families.effects import EFFECTS
from moerge.models.families.family import EMBEDDING, HEAD, TOKEN_IDS, UNUSED, Family, head_dim
from moerge.models.families.refused import REFUSED
from moerge.models.families.registry import family_of, require_family
from moerge.models.foreign import require_content
from moerge.models.quantised import require_unquantised
from moerge.models.wrappers import TWINS, is_wrapper, text_config, text_fields
from moerge_proto.experts import Vocabulary

_MAX_CONFIG_BYTES = 2**20
_MOST = {
    "num_hidden_layers": 2**12,
    "num_labels": 2**16,
    **dict.fromkeys(("depth", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"), 2**20),
    **dict.fromkeys(("head_dim", "global_head_dim", "num_global_key_value_heads", "vocab_size"), 2**30),
    "max_position_embeddings": 2**40,
}
"""The limits of statistics files, or far above any model."""

_DTYPE_TODO = "correct it, such as float32 or bfloat16, or remove it"
_SENSELESS = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, OSError, StrictDataclassError)
"""Errors of transformers for invalid settings."""

_OF_MACHINE = {"_name_or_path", "transformers_version"}


def read_config(folder: Path) -> PretrainedConfig:
    """The dense config in `folder`, with all defaults; an adapter's is its base's. Code in the folder is never run.

    A wrapper's is that of its text model, or of that one's equal. Its choice of kernels is dropped.

    Raises:
        CheckpointError: config.json is missing or invalid.
        IncompatibleExpertError: a refused model_type, or quantised weights.
    """
    path = file_of(folder, "config.json")
    require_content(path)
    content = _content(path)
    try:
        config: PretrainedConfig = (
            text_config(content)
            if is_wrapper(content)
            else AutoConfig.from_pretrained(path.parent, local_files_only=True, trust_remote_code=False)
        )
    except _SENSELESS as error:
        if (model_type := _model_type(content)) in REFUSED:
            require_family(model_type)
        raise CheckpointError(f"can't be read as a model config: {error}", where=str(path)) from error
    if not (config.dtype is None or (isinstance(config.dtype, torch.dtype) and config.dtype.is_floating_point)):
        raise CheckpointError(f"{config.dtype!r} is not a dtype of weights", where=f"{path}: dtype", todo=_DTYPE_TODO)
    config._attn_implementation = config._experts_implementation = None  # it may name a kernel to download
    _remove_ids(config)
    require_unquantised(getattr(config, "quantization_config", None), str(path))
    if is_adapter(folder):
        config.update(Adapter(folder).config)
    return config


def _remove_ids(config: PretrainedConfig) -> None:
    """Removes token ids without a row in the embedding, which transformers' models refuse."""
    for name in TOKEN_IDS:
        if largest_id(getattr(config, name, None)) >= config.vocab_size:
            setattr(config, name, None)


def largest_id(value: object) -> int:
    """The largest of a config field's token ids; -1 without any."""
    ids = value if isinstance(value, list) else [value]
    return max((item for item in ids if isinstance(item, int)), default=-1)


def ids_without_row(path: Path) -> dict[str, int]:
    """The token ids of a config.json without a row in the embedding, by field; `read_config` removes them."""
    content = _content(path)
    fields = text_fields(content) if is_wrapper(content) else content
    found = {name: largest_id(fields.get(name)) for name in TOKEN_IDS}
    return {name: id_ for name, id_ in found.items() if id_ >= fields.get("vocab_size", inf)}


def config_bytes(path: Path, **changes: object) -> bytes:
    """The content of a config.json with changes; a wrapper's is that of its text model."""
    content = _content(path)
    if is_wrapper(content):
        fields = text_config(content).to_dict()
        content = {name: value for name, value in fields.items() if name not in _OF_MACHINE}
    elif not changes:
        return path.read_bytes()
    return f"{json.dumps({**content, **changes}, indent=2)}\n".encode()


def is_wrapped(folder: Path) -> bool:
    """Tell whether the config.json of a dense checkpoint is a wrapper's."""
    return is_wrapper(_content(file_of(folder, "config.json")))


def _content(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, Mapping) else {}


def _model_type(content: Mapping[str, Any]) -> str:
    """The model_type of a config's text model, or of that one's equal."""
    model_type = str((text_fields(content) if is_wrapper(content) else content).get("model_type", ""))
    return TWINS.get(model_type, model_type)


def require_plain_config(path: Path) -> None:
    """Requires a config.json that is safe to open: libraries allocate lists whose lengths are settings.

    Raises:
        CheckpointError: it is not a JSON object of finite numbers, or a count is too large.
        IncompatibleExpertError: its family is unknown.
    """
    require_content(path)
    require_small(path, _MAX_CONFIG_BYTES)
    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"can't be read as a model config: {error}", where=str(path)) from error
    if not isinstance(content, Mapping):
        raise CheckpointError("can't be read as a model config: not a JSON object", where=str(path))
    require_family(_model_type(content), text_fields(content) if is_wrapper(content) else content)
    _require_limits(content)


def _require_limits(content: Mapping[str, Any]) -> None:
    """Requires `_MOST` of all counts, those of a wrapper's parts and of kinds of layers included."""
    left: list[tuple[str, Mapping[str, Any]]] = [("", content)]
    while left:
        start, fields = left.pop()
        left += [(f"{start}{name}.", value) for name, value in fields.items() if isinstance(value, Mapping)]
        for field in fields.keys() & _MOST.keys():
            value, most = fields[field], _MOST[field]
            if isinstance(value, int | float) and abs(value) > most:
                where, todo = f"config.json: {start}{field}", "use the seed model's own config.json"
                raise CheckpointError(f"expected at most {most}, found {value}", where=where, todo=todo)


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is not a number")


def settings_of(config: PretrainedConfig) -> dict[str, Any]:
    """The settings that decide a dense model's logits, which all experts share, and which name a seed's body.

    They are the effects of those fields that the published class gets; a family's demands fix all others, or it has no
    exact equivalent.

    Raises:
        IncompatibleExpertError: a setting without an exact equivalent.
    """
    effects = EFFECTS | {**family_of(config).effects}
    fields = config.to_dict()
    found = {name: effects[name](config) if name in effects else fields.get(name) for name in _names(config)}
    return {name: value for name, value in found.items() if value is not UNUSED}


def _names(config: PretrainedConfig) -> list[str]:
    """The fields that the published class gets, or that a family reads for it."""
    family = family_of(config)
    return sorted({"model_type", *family.copied, *family.renamed.values(), *family.read} & config.to_dict().keys())


def require_same_config(
    first: PretrainedConfig,
    other: PretrainedConfig,
    who: str,
    vocabulary: Vocabulary,
    others: str = "the other experts",
) -> None:
    """Requires that `other`, named `who` in errors, has the `settings_of` `first`, named `others`.

    Raises:
        IncompatibleExpertError: names every field that differs, with both values.
    """
    if first.model_type != other.model_type:
        raise _differs(who, others, {"model_type": (other.model_type, first.model_type)})
    ours, theirs = settings_of(first), settings_of(other)
    names = sorted(ours.keys() | theirs.keys())
    differing = {name: (theirs.get(name), ours.get(name)) for name in names if theirs.get(name) != ours.get(name)}
    if vocabulary == "pad":
        differing.pop("vocab_size", None)
    if differing:
        raise _differs(who, others, differing)


def _differs(who: str, others: str, fields: Mapping[str, tuple[object, object]]) -> IncompatibleExpertError:
    values = "; ".join(f"{name} is {theirs!r}, not {ours!r}" for name, (theirs, ours) in fields.items())
    todo = "train all experts from the same seed model; they must have the same architecture"
    if fields.keys() == {"vocab_size"}:
        todo = "train it without added tokens, or remove the rows that no token has (model.resize_token_embeddings)"
    return IncompatibleExpertError(
        f"{who} differs from {others}: {values}", where=f"config.json: {', '.join(fields)}", todo=todo
    )


def replaced_settings(first: PretrainedConfig, other: PretrainedConfig) -> list[str]:
    """The fields of `other` that a version has from `first` instead: they differ, and no logit depends on them."""
    ours, theirs = first.to_dict(), other.to_dict()
    names = {*_names(first), *_names(other)} - settings_of(other).keys()
    return [name for name in sorted(names) if ours.get(name) != theirs.get(name)]


def dense_config(config: PretrainedConfig, shapes: Mapping[str, Sequence[int]]) -> PretrainedConfig:
    """The config of a dense model with tensors of these shapes, and otherwise that of `config`."""
    result = copy(config)
    result.update({"vocab_size": shapes[EMBEDDING][0], "tie_word_embeddings": HEAD not in shapes})
    return result


def published_config(
    family: Family, config: PretrainedConfig, experts: int, top_k: int, dtype: str, vocab_size: int, tied: bool
) -> dict[str, Any]:
    """The fields of the published MoE's config.json."""
    source, host = config.to_dict(), family.host
    fields = {
        "architectures": [host.class_name],
        "model_type": host.model_type,
        "dtype": dtype,
        "torch_dtype": dtype,
        "use_cache": True,
        host.chosen: top_k,
        host.count: experts,
        **{name: source[name] for name in family.copied if name in source},
        **{published: source[dense] for published, dense in family.renamed.items()},
        **host.fixed,
        **family.fixed,
        "head_dim": head_dim(config) if (given := source.get("head_dim")) is None else given,
        "vocab_size": vocab_size,
        "tie_word_embeddings": tied,
        **family.settings(config),
    }
    return {**fields, **_legacy_rope(fields.get("rope_parameters"))}


def _legacy_rope(rope: Mapping[str, Any] | None) -> dict[str, Any]:
    """The older form of the rope settings, for engines that read only that; it has one rope for all layers."""
    if not rope or any(isinstance(value, Mapping) for value in rope.values()):
        return {}
    scaling = {key: value for key, value in rope.items() if key != "rope_theta"}
    plain = scaling.get("rope_type", "default") == "default"
    return {"rope_theta": rope.get("rope_theta", 10000.0), "rope_scaling": None if plain else scaling}
