"""A version as one GGUF file."""

import shutil
from pathlib import Path
from typing import Any

from moerge.errors import CheckpointError, MoergeError
from moerge.export.converter import convert, converter
from moerge.export.folder import converter_folder
from moerge.export.llama_cpp import converter_form, refusals
from moerge.files import json_object, require_own, sync_folder
from moerge.models.families.hosts import HOSTS
from moerge.models.stored import StoredTensors
from moerge.progress import Progress

_TYPES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
_BITS = {"f32": 32, "bf16": 16, "f16": 16, "q8_0": 8.5}
_MAX_CONFIG_BYTES = 2**20


def version_config(version: Path) -> dict[str, Any]:
    """config.json of a version's folder.

    Raises:
        CheckpointError: it is missing, or not a version's.
    """
    path = version / "config.json"
    if not path.is_file():
        todo = f"name a folder from moerge merge, or pull the version first: moerge pull {version} FOLDER"
        raise CheckpointError("expected a version's folder; found no config.json", where=str(version), todo=todo)
    config = json_object(path, _MAX_CONFIG_BYTES)
    known = sorted(HOSTS)
    if config.get("model_type") not in known:
        problem = f"expected a version, of model_type {' or '.join(known)}; found {config.get('model_type')!r}"
        raise CheckpointError(problem, where=f"{path}: model_type")
    return config


def export_gguf(version: Path, out: Path, llama_cpp: Path | None, quantise: str | None, progress: Progress) -> None:
    """Writes a version's folder as a GGUF with llama.cpp's converter. `out` appears whole (law 10).

    `llama_cpp`: the converter's folder; None: it is on PATH. `quantise`: its name of a number format; None: the
    version's own.

    Raises:
        MoergeError: `out` exists, llama.cpp can't run the version, or there is no converter, or it failed.
    """
    config = version_config(version)
    if refused := refusals(config):
        raise MoergeError(f"llama.cpp {'; it '.join(refused)}", where=str(version), todo="use transformers or vLLM")
    if out.exists():
        raise MoergeError("already exists", where=str(out), todo="name a new file, or remove this one")
    for path in version.iterdir():
        if path.suffix != ".safetensors":
            require_own(path)  # the converter embeds tokenizer and chat template
    command, outtype = converter(llama_cpp), quantise or _TYPES.get(config.get("dtype", ""), "f32")
    parameters = sum(spec.bytes // spec.dtype.itemsize for spec in StoredTensors(version).specs.values())
    part = out.with_name(f".{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)  # of a killed run
    try:
        part.mkdir(parents=True)
        form = converter_form(config)
        source = converter_folder(version, form, part / "version", progress) if form.changed else version
        file = part / "model.gguf"
        options = ["--outfile", str(file), "--outtype", outtype, "--model-name", version.resolve().name]
        convert([*command, str(source), *options, *form.options], file, int(parameters * _BITS[outtype] / 8), progress)
        file.replace(out)
        sync_folder(out.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)
