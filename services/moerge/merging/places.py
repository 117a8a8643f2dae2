"""Places of the inputs of `moerge merge`, checked before slow imports."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from moerge.documents.files import data_files
from moerge.errors import MoergeError
from moerge.files import user_path
from moerge.models.sources import local_folder
from moerge.settings import named_values

Values = Sequence[str] | None
"""NAME=PLACE values of an option, or its places."""


def require_places(
    expert: Values, add: Values, base: str | None, from_: Path | None, texts: Mapping[str, Values], prompt: Values
) -> None:
    """Requires local folders and files that exist; others, such as those of the hub, are read later.

    Raises:
        MoergeError: names the folder, or the option and the file.
    """
    if not (expert or add):
        todo = "name two or more: `expert` NAME=DIR `text` NAME=FILES; moerge merge --help has an example"
        raise MoergeError("no expert is named", where="`expert`", todo=todo)
    for field, values in (("expert", expert), ("add", add)):
        for places in named_values(field, values or ()).values():
            for place in places:
                local_folder(place)
    if base is not None:
        local_folder(base)
    if from_ is not None and not from_.is_dir():
        raise MoergeError("no such folder", where=str(from_), todo="name the output of moerge merge --keep-statistics")
    for field, values in texts.items():
        for name, places in named_values(field, values or ()).items():
            require_texts(places, f"`{field}` {name}")
    for places in named_values("prompt", prompt or ()).values():
        for place in places:
            prompts_of(place)


def require_texts(places: Sequence[str], where: str) -> None:
    """Requires local files; others, such as those in a bucket, are read later."""
    for place in places:
        if "://" not in place:
            data_files(place, where=where)


def prompts_of(value: str) -> list[str]:
    """The prompts of PROMPT or @FILE, which has one per line."""
    if not value.startswith("@"):
        return [value]
    try:
        lines = user_path(value[1:]).read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        todo = "name a UTF-8 text file with a prompt per line"
        raise MoergeError(f"can't be read: {error}", where=f"`prompt` {value}", todo=todo) from error
    if not (result := [line for line in lines if line.strip()]):
        raise MoergeError("the file has no prompt", where=f"`prompt` {value}", todo="write a prompt per line")
    return result
