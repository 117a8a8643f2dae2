"""llama.cpp: GGUFs by its own converter, or as the remedy by `moerge export`, through llama-cpp-python."""

import os
from hashlib import sha256
from pathlib import Path

from engines.engine import HOME, Engine, Model
from moerge.export.converter import convert, converter
from moerge.export.gguf import export_gguf
from moerge.progress import NoProgress

CONVERTER = Path(__file__).parent / "converter"
_TYPES = {"float32": "f32", "bfloat16": "bf16"}


def gguf(model: Model) -> Path:
    """A model's GGUF, made unless it exists.

    Raises:
        MoergeError: llama.cpp can't run the version, or the converter failed.
    """
    out = HOME / "ggufs" / f"{sha256(repr(model).encode()).hexdigest()[:16]}.gguf"
    out.parent.mkdir(parents=True, exist_ok=True)
    if not out.exists():
        os.environ.update(LLAMA=str(ENGINE.python), LLAMA_SOURCES=str(HOME / "llama.cpp"))
        outtype = _TYPES[model.dtype]
        if dict(model.options).get("export"):
            export_gguf(model.folder, out, CONVERTER, outtype, NoProgress())
        else:
            part = out.with_suffix(".part")
            given = [str(model.folder), "--outfile", str(part), "--outtype", outtype]
            convert([*converter(CONVERTER), *given], part, 1, NoProgress())
            part.replace(out)
    return out


ENGINE = Engine(
    name="llama.cpp",
    package="llama-cpp-python",
    environment="llama",
    script="llama_cpp_answers.py",
    remedies={"moerge export": {"export": True}},
    prepared=gguf,
    served="merged.gguf",
    speed="llama_cpp_speed.py",
)
