"""The owner's documents, read one line at a time."""

import glob
import json
from collections.abc import Iterator
from pathlib import Path

from moerge.errors import MoergeError


def data_files(pattern: str) -> list[Path]:
    """The files of a glob, sorted.

    Raises:
        MoergeError: there are none.
    """
    files = sorted(Path(name) for name in glob.glob(pattern, recursive=True))
    if not files:
        raise MoergeError("no file matches", where=f"--data {pattern}", todo="quote the pattern, and check the path")
    return files


def documents(files: list[Path]) -> Iterator[str]:
    """The field `text` of every line of JSON Lines files; empty texts are left out.

    Raises:
        MoergeError: names the file and line that is no JSON object with a text.
    """
    for file in files:
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    text = json.loads(line)["text"]
                except (ValueError, KeyError, TypeError) as error:
                    found = "not a JSON object with the field 'text'"
                    raise MoergeError(found, where=f"{file}, line {number}", todo="give JSON Lines") from error
                if text:
                    yield str(text)
