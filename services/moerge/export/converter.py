"""llama.cpp's converter: its command, and its run."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from moerge.errors import MoergeError
from moerge.progress import Progress

SCRIPT = "convert_hf_to_gguf.py"
_GET = (
    "git clone --depth 1 https://github.com/ggml-org/llama.cpp; pip install gguf sentencepiece; "
    "then set `llama_cpp` to its folder"
)
_REMEDIES = {
    "ModuleNotFoundError": "pip install gguf sentencepiece, in the environment of moerge",
    "pre-tokenizer was not recognized": "add the tokenizer to llama.cpp, which doesn't know it",
    "is not supported": "update llama.cpp",
}
"""Text of the converter's last lines -> what to do."""
_LAST, _SECONDS = 5, 0.2


def converter(llama_cpp: Path | None) -> list[str]:
    """The converter's command: the script in the folder `llama_cpp`, run by this Python, or the one on PATH.

    Raises:
        MoergeError: there is none.
    """
    if llama_cpp is None:
        if (script := shutil.which(SCRIPT)) is None:
            raise MoergeError(f"llama.cpp's converter, {SCRIPT}, is not on PATH", where="`gguf`", todo=_GET)
        return [script]
    if not (llama_cpp / SCRIPT).is_file():
        raise MoergeError(f"has no {SCRIPT}", where=str(llama_cpp), todo=_GET)
    return [sys.executable, str(llama_cpp / SCRIPT)]


def convert(command: Sequence[str], out: Path, total: int, progress: Progress) -> None:
    """Runs the converter's whole command, which writes about `total` bytes to `out`, and shows its progress.

    Raises:
        MoergeError: it failed; with its last lines.
    """
    log, before = out.with_suffix(".log"), 0
    with log.open("wb") as lines, progress.track("writing the GGUF", total, "B") as tracker:
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        process = subprocess.Popen(command, stdout=lines, stderr=lines, env=environment)  # noqa: S603  # no shell
        try:
            while process.poll() is None:
                time.sleep(_SECONDS)
                size = min(out.stat().st_size if out.exists() else 0, total)
                if size > before:
                    tracker.advance(size - before)
                before = size
        finally:
            process.kill()
            process.wait()
        if process.returncode == 0:
            tracker.advance(total - before)
    if process.returncode != 0:
        text = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        last = "\n  ".join(text[-_LAST:])
        todo = next((remedy for phrase, remedy in _REMEDIES.items() if phrase in last), "")
        raise MoergeError(f"llama.cpp's converter failed:\n  {last}", where=SCRIPT, todo=todo)
