"""The files of an owner's data, here or at any URL that fsspec reads, in an order that no file system changes."""

import bz2
import gzip
import json
import lzma
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import PurePosixPath
from typing import Any, Literal

import fsspec  # type: ignore[import-untyped]

from moerge.errors import MoergeError

Form = Literal["lines", "text", "parquet", "arrow"]
FORMS: dict[str, Form] = {
    ".jsonl": "lines",
    ".ndjson": "lines",
    ".json": "lines",
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".parquet": "parquet",
    ".arrow": "arrow",
}
_DATASET, _DATASETS = "state.json", "dataset_dict.json"  # what `save_to_disk` writes beside a dataset's files


def silent(text: str) -> None:
    """Says nothing."""


@dataclass(frozen=True, order=True)
class DataFile:
    """A file of documents.

    Attributes:
        url: its path here, or its URL.
        size: bytes, as stored; 0 where the place doesn't tell.
    """

    url: str
    size: int

    @property
    def form(self) -> Form | None:
        """What its name says is in it; None if that is nothing known."""
        suffixes = [suffix.lower() for suffix in PurePosixPath(self.url).suffixes[-2:]] or [""]
        if suffixes[-1] in _UNPACK:
            form = FORMS.get(suffixes[0]) if len(suffixes) == 2 else None
            return form if form in ("lines", "text") else None
        return FORMS.get(suffixes[-1])

    @contextmanager
    def open(self) -> Iterator[tuple[Any, Any]]:
        """(its plain content, the file as stored), both binary; what was written with a packing is unpacked."""
        with fsspec.open(self.url, "rb").open() as stored:
            unpack = _UNPACK.get(PurePosixPath(self.url).suffix.lower(), lambda same: same)
            yield unpack(stored), stored


def arrow() -> Any:
    """The module pyarrow.

    Raises:
        MoergeError: it isn't installed.
    """
    try:
        import pyarrow  # type: ignore[import-untyped]
    except ImportError as error:
        todo = "pip install 'moerge[worker]'"
        raise MoergeError("Parquet, Arrow and zstd files need pyarrow", where="--data", todo=todo) from error
    return pyarrow


def _unzstd(stored: Any) -> Any:
    """Through pyarrow, which tells a file that was cut off; python-zstandard ends without a word."""
    return BufferedReader(arrow().CompressedInputStream(arrow().PythonFile(stored, mode="r"), "zstd"))


_UNPACK: dict[str, Callable[[Any], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": _unzstd,
}
_READABLE = f"{', '.join(FORMS)}; JSON Lines and text also with {', '.join(_UNPACK)}"


def data_files(*sources: str, option: str = "--data", say: Callable[[str], None] = silent) -> list[DataFile]:
    """The files of paths, globs, folders and URLs, sorted, none twice; of a folder, all below it of a known form.

    A dataset that `save_to_disk` wrote is the files that its state names. `say` is told what is left out of folders;
    `option` is how the sources were named.

    Raises:
        MoergeError: there are none, or one that is named is of no known form, or the place can't be read.
    """
    return sorted({file for source in sources for file in _files(source, option, say)})


def _files(source: str, option: str, say: Callable[[str], None]) -> list[DataFile]:
    where = f"{option} {source}"
    try:
        place, path = fsspec.url_to_fs(source)
        local = "file" in (place.protocol if isinstance(place.protocol, tuple) else (place.protocol,))

        def named(entries: dict[str, Any]) -> list[DataFile]:
            followed = {n: place.info(n) if each.get("islink") else each for n, each in entries.items()}
            files = [(name, each) for name, each in followed.items() if each["type"] == "file"]
            return [
                DataFile(name if local else place.unstrip_protocol(name), each["size"] or 0) for name, each in files
            ]

        try:
            entry = place.info(path)
        except FileNotFoundError:
            files = named(place.glob(path, detail=True))
        else:
            folder = entry["type"] == "directory"
            files = _of_folder(place, path, named, say) if folder else named({path: entry})
    except ImportError as error:
        raise MoergeError(str(error), where=where, todo="install what it names beside moerge") from error
    except (OSError, ValueError) as error:
        raise MoergeError(f"can't be read: {error}", where=where, todo="check the address and its access") from error
    if not files:
        todo = f"quote a pattern, and check the path; read are {_READABLE}"
        raise MoergeError("no file matches", where=where, todo=todo)
    for file in files:
        if file.form is None:
            raise MoergeError("a file of no known form", where=file.url, todo=f"read are {_READABLE}")
    return files


def _of_folder(place: Any, path: str, named: Any, say: Callable[[str], None]) -> list[DataFile]:
    found = place.find(path, detail=True)
    states = {name.rpartition("/")[0]: name for name in found if name.rpartition("/")[2] == _DATASET}
    datasets = {folder: _dataset(place, name) for folder, name in states.items()}
    kept = {}
    for name, entry in found.items():
        folder, _, own = name.rpartition("/")
        below = name[len(path.rstrip("/")) + 1 :].split("/")
        hidden = any(part.startswith((".", "_")) for part in below)
        if not hidden and own != _DATASETS and own in datasets.get(folder, [own]):
            kept[name] = entry
    files = [file for file in named(kept) if file.form is not None]
    if left := len(kept) - len(files):
        say(f"left out of {path}: {left} linked folders, or files whose names say no known form")
    return files


def _dataset(place: Any, name: str) -> list[str]:
    """The names of a dataset's files, from its state."""
    try:
        with place.open(name, "rb") as file:
            return [str(each["filename"]) for each in json.load(file)["_data_files"]]
    except (ValueError, KeyError, TypeError) as error:
        todo = "write it with datasets' save_to_disk, or name its files"
        raise MoergeError("not the state of a dataset on disk", where=name, todo=todo) from error
