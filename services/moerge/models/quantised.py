"""Quantised checkpoints, which moerge refuses."""

from collections.abc import Collection, Mapping

from moerge.errors import CheckpointError, IncompatibleExpertError

_TODO = "name the checkpoint before quantisation, with weights of bfloat16, float16 or float32; an adapter's base too"
_PARTS = {
    "bitsandbytes": (".absmax", ".quant_map", ".SCB", ".weight_format"),
    "GPTQ or AWQ": (".qweight", ".qzeros", ".g_idx"),
    "fp8": (".weight_scale", ".weight_scale_inv", ".input_scale"),
}  # method -> ends of its tensors' names


def require_unquantised(settings: object, where: str) -> None:
    """Refuses a config with this `quantization_config`: IncompatibleExpertError names the method."""
    if not settings:
        return
    method = settings.get("quant_method") if isinstance(settings, Mapping) else None
    problem = f"the weights are quantised by {method or 'an unknown method'}"
    raise IncompatibleExpertError(problem, where=f"{where}: quantization_config", todo=_TODO)


def unsupported(dtype: str, known: Collection[str], where: str, names: Collection[str]) -> CheckpointError:
    """The error for a dtype outside `known`; `names` are the tensors of the file."""
    parts = (method for method, ends in _PARTS.items() if any(name.endswith(ends) for name in names))
    method = "fp8" if dtype.startswith("F8") else next(parts, None)
    by = f", of weights quantised by {method}" if method else ""
    return CheckpointError(f"dtype {dtype}{by}; expected one of {', '.join(known)}", where=where, todo=_TODO)
