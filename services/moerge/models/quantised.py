"""Quantised checkpoints, which moerge refuses."""

import re
from collections.abc import Collection, Mapping
from pathlib import Path

from moerge.errors import CheckpointError, IncompatibleExpertError
from moerge.files import json_object

_TODO = "name the checkpoint before quantisation, with weights of bfloat16, float16 or float32"
_PARTS = {
    "bitsandbytes": (".absmax", ".quant_map", ".SCB", ".weight_format"),
    "GPTQ or AWQ": (".qweight", ".qzeros", ".g_idx"),
    "fp8": (".weight_scale", ".weight_scale_inv", ".input_scale"),
}  # method -> ends of its tensors' names


_NAMED = re.compile(
    r"(?P<whole>[^/]+/[^/]+?)-(unsloth-)?(?P<method>bnb|GPTQ|AWQ)(-(4|8)-?bit|-Int(4|8))?(@.*)?", re.IGNORECASE
)
_MAX_BYTES = 2**20


def require_unquantised(settings: object, where: str) -> None:
    """Refuses a config with this `quantization_config`: IncompatibleExpertError names the method."""
    if method := _method(settings):
        problem = f"the weights are quantised by {method}"
        raise IncompatibleExpertError(problem, where=f"{where}: quantization_config", todo=_TODO)


def config_method(path: Path) -> str | None:
    """The method that quantised the model of a config.json; None if it is in full precision or has no config."""
    return _method(json_object(path, _MAX_BYTES).get("quantization_config")) if path.is_file() else None


def _method(settings: object) -> str | None:
    if not settings:
        return None
    method = settings.get("quant_method") if isinstance(settings, Mapping) else None
    return str(method or "an unknown method")


def named_method(hub_id: str) -> str | None:
    """The method that quantised a model of the hub, by its name; None if the name has none."""
    match = _NAMED.fullmatch(hub_id)
    return None if match is None else {"bnb": "bitsandbytes"}.get(match["method"].lower(), match["method"].upper())


def unquantised_name(hub_id: str) -> str | None:
    """The name without its method, under which the hub may have the model in full precision."""
    match = _NAMED.fullmatch(hub_id)
    return None if match is None else match["whole"]


def unsupported(dtype: str, known: Collection[str], where: str, names: Collection[str]) -> CheckpointError:
    """The error for a dtype outside `known`; `names` are the tensors of the file."""
    parts = (method for method, ends in _PARTS.items() if any(name.endswith(ends) for name in names))
    method = "fp8" if dtype.startswith("F8") else next(parts, None)
    by = f", of weights quantised by {method}" if method else ""
    return CheckpointError(f"dtype {dtype}{by}; expected one of {', '.join(known)}", where=where, todo=_TODO)
