"""The source of a checkpoint: a folder, or the hub."""

import json
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path

from huggingface_hub import constants, get_token, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from moerge.bearer import bearer_token
from moerge.errors import CheckpointError
from moerge.files import atomic_file, cache_folder, require_own, user_path
from moerge.models.foreign import REMEDIES, remedy
from moerge.network import require_environment
from moerge_proto.digests import sha256_hex

ADAPTER_CONFIG = "adapter_config.json"
_TODO = "name a folder, or a hub id like name/model"
BASE = "base_model_name_or_path"  # in these settings

_HUB_ID = re.compile(r"(?P<name>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>[\w./-]+))?")
_HUB_ADDRESS = re.compile(r"https://huggingface\.co/(?P<name>[\w.-]+/[\w.-]+)(/(resolve|tree)/.*)?/?")
WANTED = ("*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja", "*.txt", "tokenizer.model")
_CACHED = re.compile(r"models--(?P<owner>[\w.-]+?)--(?P<model>[\w.-]+)")
"""The name of a model's folder in the hub's cache."""
_ENDINGS = (".safetensors", ".json", *(ending for endings in REMEDIES for ending in endings))


def checkpoint_folder(source: str) -> Path:
    """The folder of a checkpoint; a hub id, `name/model` or `name/model@revision`, is downloaded or cached.

    `BASE+ADAPTER`, both folders or hub ids, is an adapter on another base than its settings name.

    Raises:
        CheckpointError: there is no such folder, and the hub lacks it or can't be reached.
    """
    if (folder := local_folder(source)) is not None:
        return folder
    if "+" in source:
        base, adapter = map(checkpoint_folder, _base_and_adapter(source))
        name = sha256_hex(f"{base.resolve()}\0{adapter.resolve()}".encode())[:16]
        return on_base(base, adapter, cache_folder() / "adapters" / name)
    return hub_snapshot(source)


def local_folder(source: str) -> Path | None:
    """The folder that a source names; None for a hub id or `BASE+ADAPTER`.

    Raises:
        CheckpointError: a file, a folder without a snapshot of the hub's cache, or neither a folder nor a hub id.
    """
    folder = user_path(source)
    if source and folder.is_dir():
        _require_no_cache(folder)
        return folder
    if source and folder.exists():
        raise CheckpointError("a file, not a folder", where=source, todo=_of_file(folder))
    if folder.is_symlink():
        todo = "correct the link, or name the folder itself"
        raise CheckpointError(f"a link to {folder.readlink()}, which is missing", where=source, todo=todo)
    if "+" in source or _may_be_hub_id(source):
        return None
    address = _HUB_ADDRESS.fullmatch(source)
    todo = f"name the hub id: {address['name']}" if address else _nearest(folder) or _TODO
    raise CheckpointError("no such folder", where=source, todo=todo)


def hub_snapshot(source: str, files: Sequence[str] = WANTED) -> Path:
    """The folder of a model of the hub, `name/model` or `name/model@revision`, downloaded or cached.

    `files`: patterns of the wanted ones. Errors are those of `checkpoint_folder`.
    """
    match = _HUB_ID.fullmatch(source)
    if match is None:
        raise CheckpointError("no such folder", where=source, todo=_TODO)
    require_hub()
    try:
        return Path(snapshot_download(match["name"], revision=match["revision"], allow_patterns=list(files)))
    except (LocalEntryNotFoundError, HfHubHTTPError, HFValidationError, OSError) as error:
        first = str(error).strip().splitlines()[0]
        todo = "check the spelling and the network, or download it elsewhere and name the folder"
        raise CheckpointError(
            f"no such folder, and the hub can't provide it: {first}", where=source, todo=_nearest(Path(source)) or todo
        ) from error


def require_hub() -> None:
    """Requires that proxies, certificates and token of the environment can be used for the hub."""
    require_environment()
    if (token := get_token()) is not None:
        bearer_token(token, "HF_TOKEN")


def source_from(folder: Path, source: str) -> str:
    """A source whose relative paths start from `folder`, as one that `checkpoint_folder` reads.

    Raises:
        CheckpointError: the working directory has a folder of this name, and `folder` doesn't.
    """
    path = beside(folder, source)
    if os.path.exists(path):
        return path
    if "+" in source:
        return "+".join(source_from(folder, part) for part in source.split("+", 1))
    if not _may_be_hub_id(source):
        return path
    if _is_folder(source):
        todo = f"write its path from {folder}"
        raise CheckpointError("a folder of the working directory, not of the file's folder", where=source, todo=todo)
    return source


def source_for(shown: Callable[[str], str], source: str) -> str:
    """A source with its folders as `shown` gives them, and its hub ids with their commits."""
    if _is_folder(source):
        return shown(source)
    if "+" in source:
        return "+".join(source_for(shown, part) for part in _base_and_adapter(source))
    if (match := _HUB_ID.fullmatch(source)) is None:
        return shown(source)
    with suppress(LocalEntryNotFoundError, HFValidationError):
        snapshot = snapshot_download(match["name"], revision=match["revision"], local_files_only=True)
        return f"{match['name']}@{Path(snapshot).name}"
    return source


def beside(folder: Path, path: str) -> str:
    """A path that starts from `folder`, if it is relative."""
    return os.path.abspath(folder / os.path.expanduser(path))


def is_hub_snapshot(folder: Path) -> bool:
    """Tell whether a folder is in the hub's cache."""
    return folder.resolve().is_relative_to(Path(constants.HF_HUB_CACHE).resolve())


def _base_and_adapter(source: str) -> tuple[str, str]:
    """The parts of `BASE+ADAPTER`, split at the first plus behind a folder, or else at the first."""
    splits = [(source[:place], source[place + 1 :]) for place, character in enumerate(source) if character == "+"]
    return next((split for split in splits if _is_folder(split[0])), splits[0])


def _of_file(file: Path) -> str:
    """The remedy for a file given as a folder."""
    if file.is_file() and os.access(file, os.R_OK):
        with file.open("rb") as content:
            if content.read(4) == b"GGUF":
                return remedy(".gguf")
    if todo := remedy(file.name):
        return todo
    if (file.parent / "config.json").is_file():
        return f"name its folder: {file.parent}"
    return "name a folder with config.json, safetensors and a tokenizer, as save_pretrained writes it"


def _is_folder(source: str) -> bool:
    return os.path.isdir(user_path(source))


def _may_be_hub_id(source: str) -> bool:
    """Tell whether a source that isn't a folder may be a hub id, not a path."""
    return _HUB_ID.fullmatch(source) is not None and not source.lower().endswith(_ENDINGS)


def _require_no_cache(folder: Path) -> None:
    """Requires a folder that isn't the one around the snapshots in the hub's cache."""
    for place in (folder, folder.parent):
        if (match := _CACHED.fullmatch(place.name)) is None or any(folder.glob("*config.json")):
            continue
        todo = f"name the hub id, which is downloaded: {match['owner']}/{match['model']}"
        if snapshot := next(place.glob("snapshots/*/*config.json"), None):
            todo = f"name a snapshot in it, such as {snapshot.parent}"
        raise CheckpointError("a folder of the hub's cache, not a model's", where=str(folder), todo=todo)


def _nearest(path: Path) -> str:
    """A remedy with the folder whose path resembles one that doesn't exist; empty without one."""
    part = next((part for part in (path, *path.parents) if part.parent.is_dir()), path)
    with suppress(OSError):
        for name in get_close_matches(part.name, os.listdir(part.parent)):
            if (near := part.with_name(name) / path.relative_to(part)).is_dir():
                return f"did you mean {near}?"
    return ""


def on_base(base: Path, adapter: Path, folder: Path) -> Path:
    """Makes `folder` of an adapter's files, with settings that name the base, and returns it.

    Small files are copied and others linked. Small ones that are links out of the adapter's folder are refused.
    """
    try:
        settings = json.loads((adapter / ADAPTER_CONFIG).read_bytes())
        text = json.dumps({**settings, BASE: str(base.resolve()), "revision": None}, indent=2).encode()
    except (OSError, ValueError, TypeError) as error:
        todo = "name BASE+ADAPTER: the base model's folder or hub id, then the adapter's"
        raise CheckpointError(f"not an adapter: {error}", where=str(adapter / ADAPTER_CONFIG), todo=todo) from error
    folder.mkdir(parents=True, exist_ok=True)
    files = {file.name: file for file in adapter.resolve().iterdir() if file.is_file() and any(map(file.match, WANTED))}
    for name, file in files.items():
        path = folder / name
        if file.suffix != ".safetensors" and name != ADAPTER_CONFIG:
            data = require_own(file).read_bytes()
            with atomic_file(path) as out:
                out.write(data)
        elif name != ADAPTER_CONFIG and not (path.is_symlink() and path.readlink() == file):
            path.unlink(missing_ok=True)
            with suppress(FileExistsError):  # of another process
                path.symlink_to(file)  # not to the end of a link, which may change
    for path in folder.iterdir():
        if path.name not in files and not path.name.startswith("."):  # of an earlier adapter there
            path.unlink(missing_ok=True)
    with atomic_file(folder / ADAPTER_CONFIG) as out:
        out.write(text)
    return folder


def hub_id(source: str) -> str | None:
    """The model's name on the hub, `name/model`, from a hub id or an address; None for a folder and elsewhere."""
    match = None if _is_folder(source) else _HUB_ID.fullmatch(source) or _HUB_ADDRESS.fullmatch(source)
    return match["name"] if match else None
