"""Documents in JSON Lines files, read one line at a time."""

import glob
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from moerge.errors import MoergeError


def data_files(pattern: str) -> list[Path]:
    """The files of a glob, sorted.

    Raises:
        MoergeError: there are none.
    """
    files = sorted(path for path in map(Path, glob.glob(pattern, recursive=True)) if path.is_file())
    if not files:
        raise MoergeError("no file matches", where=f"--data {pattern}", todo="quote the pattern, and check the path")
    return files


def documents(files: Iterable[Path]) -> Iterator[str]:
    """The field `text` of every line of JSON Lines files in UTF-8; empty texts are left out.

    Raises:
        MoergeError: names the file and line that is no JSON object with a text.
    """
    for file in files:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    text = json.loads(line)["text"]
                    if not isinstance(text, str):
                        raise TypeError("not a string")
                    text.encode()  # half of a surrogate pair is no text
                except (ValueError, KeyError, TypeError) as error:
                    found = "not a JSON object with the field 'text', a string"
                    raise MoergeError(found, where=f"{file}, line {number}", todo="give JSON Lines in UTF-8") from error
                if text:
                    yield text
