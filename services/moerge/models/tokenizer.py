"""A folder's tokenizer, opened by transformers."""

from importlib.metadata import version
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from moerge.errors import CheckpointError
from moerge.files import json_object
from moerge.models.foreign import require_content
from moerge_proto.version_files import TOKENIZER

JSON, PIECES = "tokenizer.json", "tokenizer.model"
MAX_BYTES = 2**24
"""Of tokenizer_config.json and the like; Gemma 3's has 1.2 MB."""
_SAVE = "save the model's tokenizer in its folder: tokenizer.save_pretrained"


def open_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder, without running the folder's code.

    Raises:
        CheckpointError: there is none, or it needs code, a missing package or a newer library.
    """
    for name in (JSON, PIECES, TOKENIZER):
        if (path := folder / name).is_symlink() or path.is_file():
            require_content(path)
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise _fault(folder, error) from error


def _fault(folder: Path, error: Exception) -> CheckpointError:
    """The reason why transformers can't open a tokenizer. Its library in Rust raises plain exceptions."""
    where, said = str(folder), (str(error).strip() or type(error).__name__).partition("\n")[0]
    settings: dict[str, Any] = json_object(path, MAX_BYTES) if (path := folder / TOKENIZER).is_file() else {}
    if not any((folder / name).is_file() for name in (JSON, PIECES)):
        if settings.get("auto_map"):
            problem = "its tokenizer is code of the folder, which moerge doesn't run"
            return CheckpointError(problem, where=where, todo=f"save it as {JSON}, or use a seed that has one")
        return CheckpointError(f"no tokenizer: expected {JSON} or {PIECES}", where=where, todo=_SAVE)
    if isinstance(error, ImportError):
        todo = f"install the package that it names, or save the tokenizer as {JSON}"
        return CheckpointError(f"the tokenizer can't be read: {said}", where=where, todo=todo)
    if (folder / JSON).is_file() and not isinstance(error, OSError | ValueError | LookupError):
        todo = "install a newer tokenizers and transformers, or save the tokenizer with this one"
        problem = f"tokenizers {version('tokenizers')} can't read it: {said}"
        return CheckpointError(problem, where=str(folder / JSON), todo=todo)
    return CheckpointError(f"the tokenizer can't be read: {said}", where=where, todo=_SAVE)
