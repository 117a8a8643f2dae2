"""Files and folders that aren't what a model's are: faults with their remedies."""

from pathlib import Path

from moerge.errors import CheckpointError

_POINTER = b"version https://git-lfs"
_MARKS = b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff"
_PAGES = b"<!doct", b"<html", b"<?xml"
_ARCHIVES = (".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".zst", ".7z", ".rar")
REMEDIES = {
    (".gguf", ".ggml"): "name the model that it was converted from, with config.json and safetensors; GGUF isn't read",
    (".bin", ".pth", ".pt", ".ckpt", ".pkl"): "load it with transformers and write it with save_pretrained, as "
    "safetensors; pickles aren't read",
    _ARCHIVES: "unpack it, and name the folder in it with config.json",
    (".npz", ".msgpack", ".h5", ".onnx", ".tflite", ".keras"): "write it with transformers' save_pretrained, as "
    "safetensors",
}
"""Endings of files that aren't a model's folder -> remedy."""
_SAVED = "name a folder written by save_pretrained"


def require_content(path: Path, start: bytes | None = None) -> None:
    """Requires a file that isn't a placeholder; `start`: the first bytes of one that isn't text.

    Raises:
        CheckpointError: it is missing, a dangling link, a pointer of Git LFS, a web page, or text in another encoding.
    """
    if start is None:
        if not path.is_file():
            raise missing(path)
        with path.open("rb") as file:
            start = file.read(len(_POINTER))
        if start.startswith(_MARKS):
            todo = "save it as UTF-8 without a byte order mark; transformers reads no other text"
            raise CheckpointError("begins with a byte order mark", where=str(path), todo=todo)
    if start and _POINTER.startswith(start):
        todo = "fetch the file in its clone: git lfs pull"
        raise CheckpointError("a pointer of Git LFS, without the content", where=str(path), todo=todo)
    if start.lstrip().lower().startswith(_PAGES):
        todo = "download it again; a page of a sign-in or an error was saved in its place"
        raise CheckpointError("a web page, not a model's file", where=str(path), todo=todo)


def missing(path: Path) -> CheckpointError:
    """The error of a model's file that a folder lacks, by what is there instead."""
    folder, where = path.parent, str(path)
    if path.is_symlink():
        todo = "copy the files behind the links, too, or download the model again"
        return CheckpointError(f"a link to {path.readlink()}, which is missing", where=where, todo=todo)
    if (name := weights_elsewhere(folder)) and not any(folder.glob("*.safetensors")):
        return CheckpointError(f"not found; the folder has {name}", where=where, todo=remedy(name))
    if inner := next((item.parent for item in sorted(folder.glob(f"*/{path.name}"))), None):
        return CheckpointError("not found", where=where, todo=f"name the folder with it, such as {inner}")
    if snapshot := next(iter(sorted(folder.glob(f"snapshots/*/{path.name}"))), None):
        return CheckpointError("not found", where=where, todo=f"name the snapshot: {snapshot.parent}")
    return CheckpointError("not found", where=where, todo=_SAVED)


def weights_elsewhere(folder: Path) -> str | None:
    """The name of a file with weights in another format than safetensors."""
    endings = (ending for kind in REMEDIES if kind is not _ARCHIVES for ending in kind)
    return next((item.name for ending in endings for item in sorted(folder.glob(f"*{ending}"))), None)


def remedy(name: str) -> str:
    """The remedy for a file by its ending; empty for any other."""
    return next((todo for endings, todo in REMEDIES.items() if name.lower().endswith(endings)), "")
