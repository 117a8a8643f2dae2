"""The source of a checkpoint: a folder, or the hub."""

import re
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from moerge.errors import CheckpointError

_HUB_ID = re.compile(r"(?P<name>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")
_HUB_ADDRESS = re.compile(r"https://huggingface\.co/(?P<name>[\w.-]+/[\w.-]+)(/(resolve|tree)/.*)?/?")
_WANTED = ("*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja", "*.txt", "tokenizer.model")


def checkpoint_folder(source: str) -> Path:
    """The folder of a checkpoint. A hub id, `name/model` or `name/model@revision`, is downloaded or found in the cache.

    Raises:
        CheckpointError: there is no such folder, and the hub lacks it or can't be reached.
    """
    folder = Path(source)
    if source and folder.is_dir():
        return folder
    match = _HUB_ID.fullmatch(source)
    if match is None:
        raise CheckpointError("no such folder", where=source, todo="name a folder, or a hub id like name/model")
    try:
        return Path(snapshot_download(match["name"], revision=match["revision"], allow_patterns=list(_WANTED)))
    except (LocalEntryNotFoundError, HfHubHTTPError, HFValidationError, OSError) as error:
        first = str(error).strip().splitlines()[0]
        raise CheckpointError(
            f"no such folder, and the hub can't provide it: {first}",
            where=source,
            todo="check the spelling and the network, or download it elsewhere and name the folder",
        ) from error


def hub_id(source: str) -> str | None:
    """The model's name on the hub, `name/model`, from a hub id or an address; None for a folder and elsewhere."""
    match = None if Path(source).is_dir() else _HUB_ID.fullmatch(source) or _HUB_ADDRESS.fullmatch(source)
    return match["name"] if match else None
