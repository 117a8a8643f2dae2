"""The folder of a training's result: made once, with its record and model card."""

import shutil
from collections.abc import Callable
from pathlib import Path

from moerge.errors import MoergeError
from moerge.files import alone, work_folder
from moerge.versions.card_scores import markdown_rows
from moerge_proto.digests import digest_of
from moerge_proto.records import RECORD_FILE, Record, Training, read_record

_HIDDEN = ("kind", "pooled_text")


def work_of(out: Path, record: Record) -> Path:
    """The folder of unfinished work on `out` with this record."""
    return work_folder(out) / digest_of(record.model_dump(mode="json"))[:16]


def make_once(out: Path, record: Record, make: Callable[[Path], None]) -> None:
    """Makes the folder `out` of this record, unless it exists; `make` gets the folder of `work_of`.

    Raises:
        MoergeError: `out` has other content, or another run uses it.
    """
    work = work_folder(out)
    with alone(work):
        if not (out / RECORD_FILE).is_file():
            folder = work_of(out, record)
            folder.mkdir(exist_ok=True)
            make(folder)
        elif read_record(out) != record:
            raise MoergeError("contains another model", where=str(out), todo="name a new folder, or remove this one")
        for path in work.iterdir():
            if path.is_dir():
                shutil.rmtree(path)


def record_rows(record: Training) -> str:
    """Rows of a model card."""
    rows = [
        (name.replace("_", " "), f"{value:,}" if isinstance(value, int) else f"{value}")
        for name, value in record
        if isinstance(value, str | int | float) and name not in _HIDDEN
    ]
    build = ", ".join(f"{name} {value}" for name, value in record.build)
    return markdown_rows([("property", "value"), ("---", "---"), *rows, ("build", build)])
