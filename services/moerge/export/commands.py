"""`moerge export`"""

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.filesize import decimal

from moerge.errors import MoergeError
from moerge.terminal import Screen, output

app = typer.Typer(subcommand_metavar="")


@app.callback(invoke_without_command=True, context_settings={"allow_interspersed_args": True})
def export(
    version: Annotated[
        Path, typer.Argument(metavar="VERSION", help="Folder of a version, from moerge merge or moerge pull.")
    ],
    gguf: Annotated[
        bool, typer.Option("--gguf", help="Write a GGUF, for llama.cpp. Required: the only format.")
    ] = False,
    quantise: Annotated[
        Literal["q8_0"] | None,
        typer.Option(help="Number format of the matrices. Routers keep float32. Default: the version's own."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="New file. Default: VERSION's name with .gguf, in the current folder.")
    ] = None,
    llama_cpp: Annotated[
        Path | None,
        typer.Option(
            envvar="LLAMA_CPP", help="Folder of llama.cpp, with convert_hf_to_gguf.py. Default: that script on PATH."
        ),
    ] = None,
) -> None:
    """Write a version as a GGUF, with llama.cpp's own converter, which must be installed.

    Where llama.cpp computes a published class wrongly, the converter gets the version in an equivalent form. A version
    without one is refused. Limits are printed.

    Exit status: 0 written; 1 the version is refused, or the converter is missing or failed; 2 wrong usage;
    130 interrupted.

    Example: moerge export merged --gguf --quantise q8_0
    """
    from moerge.export.gguf import export_gguf, version_config
    from moerge.export.llama_cpp import longest_text
    from moerge.progress import progress

    if not gguf:
        raise MoergeError("no format is named", where="moerge export", todo="add --gguf")
    ending = f"-{quantise}.gguf" if quantise else ".gguf"
    target = out or Path(version.resolve().name + ending)
    export_gguf(version, target, llama_cpp, quantise, progress())
    if (longest := longest_text(version_config(version))) is not None:
        note = f"note: the GGUF is exact for texts of up to {longest:,} tokens"
        Screen(stderr=True, soft_wrap=True).print(note, highlight=False, markup=False)
    output().print(f"{target}: {decimal(target.stat().st_size)}", highlight=False, markup=False)
