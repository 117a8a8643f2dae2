"""The texts of files."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from moerge.documents.files import DataFile
from moerge.documents.reader import BadLines, as_text, placed


def documents(files: Iterable[DataFile], field: str, bad: BadLines) -> Iterator[str]:
    """The texts in a field, without their places."""
    return (text for _, text in placed(files, field, as_text, bad))


def texts_of(files: Iterable[Path]) -> Iterator[str]:
    """The texts without empty ones; an unreadable text is an error."""
    result = [DataFile(str(file), file.stat().st_size) for file in files]
    return filter(None, documents(result, "text", BadLines()))
