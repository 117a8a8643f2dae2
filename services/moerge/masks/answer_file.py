"""A keeper's answer to a request, from file to file. Nothing listens: people or a job carry the files."""

import shutil
from pathlib import Path

from pydantic import ValidationError
from rich.filesize import decimal

from moerge.errors import MoergeError
from moerge.files import atomic_file
from moerge.masks.keeper import Keeper
from moerge_proto.masks import MAX_REQUEST_BYTES, MasksRequest, summed
from moerge_proto.messages import plainly


def answer(keeper: Keeper, request: Path, out: Path) -> MasksRequest:
    """Writes the sums of a cohort's masks, and returns what was asked for; the same request has the same answer.

    Raises:
        KeeperError: the law of a keeper forbids an answer.
        MoergeError: the file is no request, or the disk has no room for the answer.
    """
    asked = read_request(request)
    free = shutil.disk_usage(out.absolute().parent).free
    if asked.answer_bytes > free:
        what = f"{decimal(free)} free; the answer has {decimal(asked.answer_bytes)}"
        raise MoergeError(what, where=str(out), todo="free space, or name a folder on a larger disk")
    seeds = keeper.seeds(asked)
    with atomic_file(out, private=True) as file:
        file.writelines(summed(asked, keeper.public_key, seeds))
    return asked


def read_request(path: Path) -> MasksRequest:
    """The request in a file, of at most `MAX_REQUEST_BYTES`."""
    todo = "copy the file again that moerge coordinator cohort wrote"
    with path.open("rb") as file:
        content = file.read(MAX_REQUEST_BYTES + 1)
    if len(content) > MAX_REQUEST_BYTES:
        raise MoergeError(f"longer than {MAX_REQUEST_BYTES:,} bytes", where=str(path), todo=todo)
    try:
        return MasksRequest.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise MoergeError(plainly(first), where=f"{path}: {place}", todo=todo) from error
