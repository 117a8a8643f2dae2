"""Places of the inputs of `moerge merge`, checked before slow imports."""

from collections.abc import Sequence
from pathlib import Path

from moerge.documents.files import data_files
from moerge.errors import MoergeError
from moerge.files import user_path
from moerge.merging.recipe import Recipe
from moerge.models.sources import local_folder


def require_places(recipe: Recipe) -> None:
    """Requires local folders and files that exist; others, such as those of the hub, are read later.

    Raises:
        MoergeError: names the folder, or the option and the file.
    """
    if not (recipe.expert or recipe.add):
        todo = "name two or more: `expert` NAME=DIR `text` NAME=FILES; moerge merge --help has an example"
        raise MoergeError("no expert is named", where="`expert`", todo=todo)
    bases = [] if recipe.base is None else [recipe.base]
    for place in (*recipe.expert.values(), *recipe.add.values(), *bases):
        local_folder(place)
    if (folder := recipe.from_) is not None and not Path(folder).is_dir():
        raise MoergeError("no such folder", where=folder, todo="name the output of moerge merge --keep-statistics")
    for field, texts in (("text", recipe.text), ("held_out", recipe.held_out)):
        for name, places in texts.items():
            require_texts(places, f"`{field}` {name}")
    for prompts in recipe.prompt.values():
        for prompt in prompts:
            prompts_of(prompt)


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
