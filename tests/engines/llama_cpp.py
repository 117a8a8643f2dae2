"""llama.cpp: GGUFs by its own converter, and by `moerge export`, through llama-cpp-python."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from engines.compare import Answers
from engines.engine import HOME, Engine, Model
from moerge.errors import MoergeError
from moerge.export.converter import convert, converter
from moerge.export.gguf import export_gguf
from moerge.progress import NoProgress

CONVERTER = Path(__file__).parent / "converter"
_TYPES = {"float32": "f32", "bfloat16": "bf16"}


@dataclass(frozen=True)
class LlamaCpp(Engine):
    """Reads GGUFs: by the converter alone, or with the option `export`, by `moerge export`."""

    def answers(self, models: Sequence[Model], said: Callable[[str], None]) -> list[Answers]:
        os.environ.update(LLAMA=str(self.python), LLAMA_SOURCES=str(HOME / "llama.cpp"))
        files, errors = dict[Model, Model](), dict[Model, Answers]()
        for each in models:
            try:
                files[each] = replace(each, folder=self._gguf(each), options=())
            except MoergeError as error:
                errors[each] = Answers(error=str(error))
        found = dict(zip(files, super().answers(list(files.values()), said), strict=True))
        return [errors[each] if each in errors else found[each] for each in models]

    def _gguf(self, model: Model) -> Path:
        out = HOME / "ggufs" / f"{sha256(repr(model).encode()).hexdigest()[:16]}.gguf"
        out.parent.mkdir(parents=True, exist_ok=True)
        if not out.exists():
            outtype = _TYPES[model.dtype]
            if dict(model.options).get("export"):
                export_gguf(model.folder, out, CONVERTER, outtype, NoProgress())
            else:
                part = out.with_suffix(".part")
                given = [str(model.folder), "--outfile", str(part), "--outtype", outtype]
                convert([*converter(CONVERTER), *given], part, 1, NoProgress())
                part.replace(out)
        return out


ENGINE = LlamaCpp(
    name="llama.cpp",
    package="llama-cpp-python",
    environment="llama",
    script="llama_cpp_answers.py",
    remedies={"moerge export": {"export": True}},
)
