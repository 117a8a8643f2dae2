"""Quantised checkpoints, which moerge refuses: their tensors aren't the weights."""

from collections.abc import Collection, Mapping

from moerge.errors import CheckpointError, IncompatibleExpertError

TODO = "name the checkpoint before quantisation, with weights of bfloat16, float16 or float32; an adapter's base too"
_PARTS = {
    "bitsandbytes": (".absmax", ".quant_map", ".SCB", ".weight_format"),
    "GPTQ or AWQ": (".qweight", ".qzeros", ".g_idx"),
    "fp8": (".weight_scale", ".weight_scale_inv", ".input_scale"),
}
"""A method's name -> ends of names of its tensors."""


def require_unquantised(settings: object, where: str) -> None:
    """Requires a config without `quantization_config`; `settings` is its value, `where` the config's path.

    Raises:
        IncompatibleExpertError: it has one; names the method.
    """
    if not settings:
        return
    method = settings.get("quant_method") if isinstance(settings, Mapping) else None
    problem = f"the weights are quantised by {method or 'an unknown method'}"
    raise IncompatibleExpertError(problem, where=f"{where}: quantization_config", todo=TODO)


def unsupported(dtype: str, known: Collection[str], where: str, names: Collection[str]) -> CheckpointError:
    """The error of a tensor of another dtype than the `known` ones; `names` are the tensors of its file."""
    parts = (method for method, ends in _PARTS.items() if any(name.endswith(ends) for name in names))
    method = "fp8" if dtype.startswith("F8") else next(parts, None)
    by = f", of weights quantised by {method}" if method else ""
    return CheckpointError(f"dtype {dtype}{by}; expected one of {', '.join(known)}", where=where, todo=TODO)
