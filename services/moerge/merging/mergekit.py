"""Configurations of mergekit-moe as recipes.

The keys are those of mergekit/moe/config.py (https://github.com/arcee-ai/mergekit).
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from moerge.errors import MoergeError
from moerge.settings import Keys, built
from moerge_proto.messages import Whole

_IGNORED = {
    "dtype": "a version has the experts' number format",
    "architecture": "a version has the class of its experts' family",
}
_NONE = "it has no equal here, and the version would differ"


class _Expert(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    source_model: str
    positive_prompts: list[str] = Field(min_length=1)
    negative_prompts: list[str] | None = None
    noise_scale: float | None = None
    residual_scale: float | None = None


class _Config(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    base_model: str
    experts: list[_Expert] = Field(min_length=1)
    gate_mode: str = "hidden"
    dtype: str | None = None
    experts_per_token: Whole = Field(default=2, ge=1)
    shared_experts: list[Any] | None = None
    architecture: str | None = None


def is_config(values: Mapping[str, Any]) -> bool:
    """Tell whether a file's values are a configuration of mergekit-moe."""
    return "base_model" in values or isinstance(values.get("experts"), list)


def translated(
    values: Mapping[str, Any],
    places: Mapping[Keys, str],
    path: str,
    unquoted: Mapping[Keys, tuple[str, str]] = MappingProxyType({}),
) -> tuple[dict[str, Any], dict[Keys, str], list[str]]:
    """The keys of a recipe file, their places, and notes on ignored keys.

    Raises:
        MoergeError: a key is invalid, or has no equal.
    """
    if isinstance(gates := values.get("gate_mode", "hidden"), str) and gates != "hidden":
        todo = "remove the key, and give each expert positive_prompts: routers are solved from text"
        raise MoergeError(f"gate_mode {gates}: {_NONE}", where=places.get(("gate_mode",), path), todo=todo)
    config, problems = built(_Config, values, places, path, unquoted=unquoted)
    if config is None:
        raise problems[0]
    if config.shared_experts:
        where = places.get(("shared_experts",), path)
        raise MoergeError(f"shared_experts: {_NONE}", where=where, todo="make it one of experts, or remove it")
    recipe: dict[str, Any] = {"expert": {}, "prompt": {}, "body": "seed", "base": config.base_model}
    recipe["top_k"] = config.experts_per_token
    own: dict[Keys, Keys] = {("base",): ("base_model",), ("body",): ("base_model",)}
    own |= {("top_k",): ("experts_per_token",), ("expert",): ("experts",), ("prompt",): ("experts",)}
    for number, expert in enumerate(config.experts):
        keys, name = ("experts", str(number)), _name(expert.source_model, recipe["expert"])
        _require_equal(expert, keys, places, path)
        recipe["expert"][name], recipe["prompt"][name] = expert.source_model, expert.positive_prompts
        own |= {("expert", name): (*keys, "source_model"), ("prompt", name): (*keys, "positive_prompts")}
    notes = [
        f"{places.get((name,), path)}: {name} {value} is ignored: {why}"
        for name, why in _IGNORED.items()
        if (value := getattr(config, name)) is not None
    ]
    if "experts_per_token" not in values:
        notes.append(f"{path}: experts_per_token is missing, and 2 as in mergekit-moe; a merge without it has 1")
    return recipe, {keys: places.get(old) or path for keys, old in own.items()}, notes


def _require_equal(expert: _Expert, keys: Keys, places: Mapping[Keys, str], path: str) -> None:
    """Requires that an expert has no key without an equal."""
    for field in ("negative_prompts", "noise_scale", "residual_scale"):
        if getattr(expert, field):
            where = places.get((*keys, field), path)
            raise MoergeError(f"{'.'.join(keys)}.{field}: {_NONE}", where=where, todo="remove the key")
    for prompt in expert.positive_prompts:
        if prompt.startswith("@"):
            where, todo = places.get((*keys, "positive_prompts"), path), "begin it with a space or another word"
            raise MoergeError(f"a prompt begins with @, which names a file here: {prompt!r}", where=where, todo=todo)


def _name(source: str, known: Mapping[str, str]) -> str:
    """A new domain, named by the last part of a model's name."""
    last = source.rstrip("/").rpartition("/")[2].partition("@")[0]
    name = re.sub(r"[^a-z0-9_-]+", "-", last.lower()).strip("-_")[:60] or "expert"
    same = sum(re.fullmatch(rf"{re.escape(name)}(-\d+)?", other) is not None for other in known)
    return f"{name}-{same + 1}" if same else name
