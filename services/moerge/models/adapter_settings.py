"""A PEFT adapter's settings, adapter_config.json."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moerge.errors import CheckpointError
from moerge.files import json_object
from moerge.models.sources import ADAPTER_CONFIG

_MAX_BYTES = 2**20
_PATTERNS = ("rank_pattern", "alpha_pattern")  # settings whose keys name modules, by their ends
_MODULE = re.compile(r"\^?(\w|\\?\.)+\$?")  # PEFT reads a regular expression; another could take forever to match
_MOST, _MOST_NAMES = 2**31, 1024
_READ = (
    *("alpha_pattern", "ensure_weight_tying", "init_lora_weights", "lora_alpha", "modules_to_save", "peft_type", "r"),
    *("rank_pattern", "task_type", "use_dora", "use_rslora"),
)
_HARMLESS = {
    *("auto_mapping", "base_model_name_or_path", "bias", "exclude_modules", "inference_mode", "layers_pattern"),
    *("layers_to_transform", "lora_dropout", "megatron_core", "peft_version"),
    *("qalora_group_size", "revision", "runtime_config", "target_modules"),
    *_READ,
    # of initialisations
    *("corda_config", "eva_config", "loftq_config", "lora_ga_config"),
}
"""Settings that change no tensor, or that moerge supports. Any other must be unset."""
_INITIAL = (None, True, False, "gaussian", "eva", "orthogonal")  # initialisations that don't change the base


@dataclass(frozen=True)
class AdapterSettings:
    """The settings, and their file."""

    path: Path
    values: Mapping[str, Any]

    @classmethod
    def of(cls, folder: Path) -> "AdapterSettings":
        """An adapter folder's; CheckpointError if they can't be read."""
        path = folder / ADAPTER_CONFIG
        return cls(path, json_object(path, _MAX_BYTES))

    @property
    def relevant(self) -> dict[str, Any]:
        """Those that decide the adapter's changes; without its base, which may be a path of this machine."""
        return {name: value for name, value in self.values.items() if name in _READ}

    @property
    def saved(self) -> Sequence[str]:
        return self.values.get("modules_to_save") or ()

    def get(self, name: str) -> Any:
        return self.values.get(name)

    def rank(self, module: str) -> int:
        return int(self._number(module, "r", "rank_pattern"))

    def scale(self, module: str) -> float:
        alpha, rank = self._number(module, "lora_alpha", "alpha_pattern"), self.rank(module)
        return alpha / (math.sqrt(rank) if self.get("use_rslora") else rank)

    def _number(self, module: str, name: str, patterns: str) -> float:
        """A module's setting: the value of the first pattern that names it, as in PEFT, or the common one."""
        given = self.get(patterns) or {}
        value = next((value for item, value in given.items() if _names(item, module)), self.get(name))
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= _MOST:
            what = f"expected a positive number for {module}, at most {_MOST}, found {value!r}"
            raise CheckpointError(what, where=f"{self.path}: {name}", todo="save the adapter again with PEFT")
        return value

    def require_supported(self) -> None:
        """Requires LoRA, rsLoRA or DoRA of a causal language model; CheckpointError names the other setting."""
        todo = "merge the adapter with PEFT (merge_and_unload), and name the merged model"
        unset = dict.fromkeys(self.values.keys() - _HARMLESS, (None, False))
        allowed = {"peft_type": ("LORA",), "task_type": (None, "CAUSAL_LM"), "init_lora_weights": _INITIAL, **unset}
        for name, values in sorted(allowed.items()):
            value = self.get(name)
            if value not in values and value not in ({}, []):
                known = " or ".join(map(str, values))
                problem = f"{value!r} is not supported, only {known}"
                raise CheckpointError(problem, where=f"{self.path}: {name}", todo=todo)
        for field, kind in {"modules_to_save": list, **dict.fromkeys(_PATTERNS, dict)}.items():
            names = self.get(field) or kind()
            if not isinstance(names, kind) or len(names) > _MOST_NAMES:
                problem = f"expected a {kind.__name__} of at most {_MOST_NAMES} names of modules"
                raise CheckpointError(problem, where=f"{self.path}: {field}", todo=todo)
            for name in names:
                if not isinstance(name, str) or _MODULE.fullmatch(name) is None:
                    raise CheckpointError(f"{name!r} is not a module's name", where=f"{self.path}: {field}", todo=todo)


def _names(pattern: str, module: str) -> bool:
    """Tell whether a module's name is the pattern's, or ends with it behind a dot."""
    name = pattern.replace("\\", "").removesuffix("$")
    return module == name.removeprefix("^") or module.endswith(f".{name}")
