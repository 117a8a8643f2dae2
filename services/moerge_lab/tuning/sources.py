"""The model that a tuning starts from, chosen by the command's arguments."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from moerge.errors import MoergeError
from moerge.models.sources import checkpoint_folder
from moerge.progress import Progress
from moerge_lab.tuning.mixture import HOW_NEW, read_mixture, read_stitched, stitched
from moerge_lab.tuning.request import Request, Texts, Wanted
from moerge_lab.tuning.version import read_version


def read_request(
    folder: Path | None,
    experts: Mapping[str, str],
    base: str | None,
    masked: Sequence[str],
    texts: Texts,
    wanted: Wanted,
    progress: Progress,
) -> Request:
    """The checked request: for a version, a BTS mixture, or a new mixture.

    Args:
        folder: of a version or a mixture.
        experts: name -> folder or hub id.
        base: the seed model of a new mixture; None: without one, if the recipe allows that.
        masked: experts of a BTS mixture to leave out.

    Raises:
        MoergeError: the arguments don't fit together, or one is unsuitable.
    """
    if folder is None and not experts and base is None:
        raise MoergeError("no model to train", todo=f"name a version's folder, or {HOW_NEW}")
    found = {name: checkpoint_folder(place) for name, place in experts.items()}
    if folder is None:
        if masked:
            raise MoergeError("a new mixture has no expert to mask", where="--mask", todo="omit its --expert instead")
        seed = None if base is None else checkpoint_folder(base)
        return read_mixture(seed, found, texts, wanted, progress)
    if base is not None:
        raise MoergeError(f"the folder {folder} needs no seed model", where="--base", todo="omit one of the two")
    if found or masked:
        return read_stitched(folder, found, masked, texts, wanted, progress)
    if stitched(folder) is not None:
        todo = "give --mask NAME or --expert NAME=DIR, or tune its members with more tokens"
        raise MoergeError("is a tuned mixture", where=str(folder), todo=todo)
    return read_version(folder, texts, wanted, progress)
