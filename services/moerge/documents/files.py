"""The files of an owner's data, local or at any URL that fsspec reads, in an order independent of the file system."""

import bz2
import gzip
import json
import lzma
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import fsspec  # type: ignore[import-untyped]
from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]
from fsspec.utils import glob_translate  # type: ignore[import-untyped]

from moerge.errors import MoergeError
from moerge.files import user_path

Form = Literal["json", "text", "parquet", "arrow"]
FORMS: dict[str, Form] = {
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".parquet": "parquet",
    ".arrow": "arrow",
}
_S3 = "s3://"
_DATASET, _DATASETS = "state.json", "dataset_dict.json"  # `save_to_disk` writes them beside a dataset's files


def silent(text: str) -> None:
    """Discards a message."""


@dataclass(frozen=True, order=True)
class DataFile:
    """A file of documents: its local path or URL, and its bytes as stored, 0 if unknown."""

    url: str
    size: int

    @property
    def form(self) -> Form | None:
        suffixes = [suffix.lower() for suffix in PurePosixPath(self.url).suffixes[-2:]] or [""]
        if suffixes[-1] in _UNPACK:
            form = FORMS.get(suffixes[0]) if len(suffixes) == 2 else None
            return form if form in ("json", "text") else None
        return FORMS.get(suffixes[-1])

    @contextmanager
    def open(self) -> Iterator[tuple[Any, Any]]:
        """(its decompressed content, the file as stored), both binary."""
        place, path = _place_of(self.url, self.url)
        with place.open(path, "rb") as stored:
            unpack = _UNPACK.get(PurePosixPath(self.url).suffix.lower()) or self._unpack_by(stored)
            yield unpack(stored), stored

    def _unpack_by(self, stored: Any) -> Callable[[Any], Any]:
        """How a file is decompressed whose name doesn't say it."""
        start = stored.read(len(_POINTER))
        stored.seek(0)
        if start == _POINTER:
            todo = "fetch the file in its clone: git lfs pull"
            raise MoergeError("a pointer of Git LFS, without the content", where=self.url, todo=todo)
        suffix = next((suffix for suffix, magic in _MAGIC.items() if start.startswith(magic)), "")
        return _UNPACK[suffix] if suffix and self.form in ("json", "text") else lambda same: same


def arrow() -> Any:
    """The module pyarrow, which an extra of the package installs."""
    try:
        import pyarrow  # type: ignore[import-untyped]
    except ImportError as error:
        todo = "pip install 'moerge[merge]'"
        raise MoergeError("Parquet, Arrow and zstd files need pyarrow", where="a data file", todo=todo) from error
    return pyarrow


def _unzstd(stored: Any) -> Any:
    """Decompresses with pyarrow, which reports a truncated file; python-zstandard doesn't."""
    return BufferedReader(arrow().CompressedInputStream(arrow().PythonFile(stored, mode="r"), "zstd"))


_UNPACK: dict[str, Callable[[Any], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": _unzstd,
}
_MAGIC = {".gz": b"\x1f\x8b", ".bz2": b"BZh91AY&SY", ".xz": b"\xfd7zXZ\0", ".zst": b"\x28\xb5\x2f\xfd"}
_POINTER = b"version https://git-lfs"
_ACCESS = "check the address, your rights and credentials; for S3, AWS_ENDPOINT_URL and the other AWS_* variables"
_READABLE = f"{', '.join(FORMS)}; JSON and text also with {', '.join(_UNPACK)}"


def data_files(*sources: str, where: str = "`data`", say: Callable[[str], None] = silent) -> list[DataFile]:
    """The files of paths, globs, folders and URLs, sorted, each once; of a folder, all files below it of known formats.

    For a dataset of `save_to_disk`, these are the files in its state. `where` names the sources in errors; `say` gets
    a line about files of other formats that are left out.
    """
    return sorted({file for source in sources for file in _files(source, f"{where} {source}", say)})


def _files(source: str, where: str, say: Callable[[str], None]) -> list[DataFile]:
    try:
        place, path = _place_of(source, where)
        local = isinstance(place, LocalFileSystem)

        def named(entries: dict[str, Any]) -> list[DataFile]:
            infos = {name: place.info(name) if item.get("islink") else item for name, item in entries.items()}
            sizes = {name: item["size"] or 0 for name, item in infos.items() if item["type"] == "file"}
            return [DataFile(name if local else place.unstrip_protocol(name), sizes[name]) for name in sizes]

        try:
            entry = place.info(path)
        except FileNotFoundError:
            files = named(_matches(place, path) if local else place.glob(path, detail=True))
        else:
            folder = entry["type"] == "directory"
            files = _of_folder(place, path, named, where, say) if folder else named({path: entry})
    except ImportError as error:
        raise MoergeError(str(error), where=where, todo="install the missing package beside moerge") from error
    except (OSError, ValueError) as error:
        todo = _ACCESS if "://" in source else "check the path and your rights; replace a link without its file"
        raise MoergeError(f"can't be read: {error}", where=where, todo=todo) from error
    if not files:
        todo = f"quote the pattern, and check the path; moerge reads {_READABLE}"
        raise MoergeError("no file matches", where=where, todo=todo)
    for file in files:
        if file.form is None:
            raise MoergeError("unknown file format", where=file.url, todo=f"use one of: {_READABLE}")
    return files


def _place_of(source: str, where: str) -> tuple[Any, str]:
    if "://" not in source:
        return LocalFileSystem(), str(Path.cwd() / user_path(source))
    if not source.startswith(_S3):
        return fsspec.url_to_fs(source)  # type: ignore[no-any-return]
    from moerge.blobs.objects import require_credentials
    from moerge.documents.buckets import Buckets

    require_credentials(os.environ, where)
    return Buckets(), source.removeprefix(_S3).rstrip("/")


def _matches(place: LocalFileSystem, path: str) -> dict[str, Any]:
    """What a pattern matches. Its folders that exist are names, and so are its brackets if it matches nothing else."""
    folder = next(str(parent) for parent in Path(path).parents if parent.is_dir())
    pattern = path.removeprefix(folder).lstrip("/")
    below = place.find(folder, None if "**" in pattern else pattern.count("/") + 1, withdirs=True, detail=True)
    for tried in (pattern, pattern.replace("[", "[[]")):
        wanted = re.compile(glob_translate(tried))
        if found := {name: item for name, item in below.items() if wanted.match(os.path.relpath(name, folder))}:
            return found
    return {}


def _of_folder(place: Any, path: str, named: Any, where: str, say: Callable[[str], None]) -> list[DataFile]:
    kept, hidden = _visible(place, path)
    files = named(kept)
    read = [file for file in files if file.form is not None]
    unknown = [file.url for file in files if file.form is None]
    linked = [name for name, entry in kept.items() if entry.get("islink") and place.isdir(name)]
    kinds = {"hidden by . or _": hidden, "linked folders": linked, "files of unknown formats": unknown}
    left = "; ".join(f"{kind}: {len(names)}, such as {names[0]!r}" for kind, names in kinds.items() if names)
    if left and not read:
        todo = f"name the files or folders themselves; moerge reads {_READABLE}"
        raise MoergeError(f"no file of the folder is read; left out: {left}", where=where, todo=todo)
    if left:
        say(f"left out of {path}: {left}")
    return read


def _visible(place: Any, path: str) -> tuple[dict[str, Any], list[str]]:
    """A folder's files but those of saved datasets that hold no data, and the hidden ones that could be read."""
    result = place.find(path, detail=True)
    states = {name.rpartition("/")[0]: name for name in result if name.rpartition("/")[2] == _DATASET}
    datasets = {folder: _dataset(place, name) for folder, name in states.items()}
    kept, hidden = dict[str, Any](), list[str]()
    for path_of_file, entry in result.items():
        folder, _, name = path_of_file.rpartition("/")
        below = path_of_file[len(path.rstrip("/")) + 1 :].split("/")
        if any(part.startswith((".", "_")) for part in below):
            hidden += [path_of_file] if DataFile(name, 0).form else []
        elif name != _DATASETS and name in datasets.get(folder, [name]):
            kept[path_of_file] = entry
    return kept, hidden


def _dataset(place: Any, name: str) -> list[str]:
    try:
        with place.open(name, "rb") as file:
            return [str(item["filename"]) for item in json.load(file)["_data_files"]]
    except (ValueError, KeyError, TypeError) as error:
        todo = "write it with datasets' save_to_disk, or name its files"
        raise MoergeError("not the state of a saved dataset", where=name, todo=todo) from error
