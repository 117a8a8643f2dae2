"""An expert as a folder: its files, its digest, and its compatibility with other experts."""

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import BinaryIO, Self

import torch
from transformers import PretrainedConfig

from moerge.errors import CheckpointError
from moerge.files import atomic_file, file_sha256, require_small, sync_folder
from moerge.models.adapters import Adapter, base_of, file_of, is_adapter
from moerge.models.config import (
    read_config,
    require_plain_config,
    require_same_config,
    require_same_tokenizer,
)
from moerge.models.families import Family, family_of
from moerge.models.reader import Checkpoint, require_tensors
from moerge.models.side_files import GENERATION, SPECIAL_TOKENS, TEMPLATE, TOKENIZER, require_side_files
from moerge.models.sources import ADAPTER_CONFIG
from moerge.models.stored import INDEX, SINGLE
from moerge.models.writer import TensorPlan, write_safetensors
from moerge.progress import Tracker
from moerge_proto.digests import digest_of, sha256_hex
from moerge_proto.experts import Vocabulary

TOKENIZER_FILES = (
    "added_tokens.json",
    TEMPLATE,
    "merges.txt",
    SPECIAL_TOKENS,
    "tokenizer.json",
    "tokenizer.model",
    TOKENIZER,
    "vocab.json",
)
_MAX_TEXT_BYTES = 2**26
_DIGITS, _BEGUN = 16, ".tmp"
_MADE = re.compile(rf"[0-9a-f]{{{_DIGITS}}}({re.escape(_BEGUN)})?")
"""Names of the folders of merged adapters."""
_OTHER_FILES = ("config.json", GENERATION, INDEX, *TOKENIZER_FILES)


def expert_files(folder: Path) -> dict[str, Path]:
    """Name -> path of the expert's files: config, weights, tokenizer. Other files are never sent.

    Raises:
        CheckpointError: there are no safetensors weights, or no config; or the folder is an adapter, which has no such
            files before `dense_folder` writes them.
    """
    if is_adapter(folder):
        raise CheckpointError("the folder is an adapter", where=str(folder), todo="merge it with its base first")
    checkpoint = Checkpoint(folder)
    read_config(folder)
    weights = {spec.file for spec in checkpoint.specs.values()}
    others = {folder / name for name in _OTHER_FILES if (folder / name).is_file()}
    if folder / SINGLE in weights:
        others.discard(folder / INDEX)  # stale
    return {path.name: path for path in sorted(weights | others)}


def file_digests(folder: Path) -> dict[str, str]:
    """Name -> SHA-256 of the expert's files; of an adapter, those that `dense_folder` would write.

    Raises:
        CheckpointError: as in `expert_files`; or an adapter or its base can't be read.
    """
    if is_adapter(folder):
        with Path(os.devnull).open("wb") as nowhere:
            return {name: write(nowhere) for name, write in _dense_files(folder).items()}
    return {name: file_sha256(path) for name, path in expert_files(folder).items()}


def dense_folder(folder: Path, into: Path) -> Path:
    """A folder with the expert's files: an adapter, merged with its base, below `into`; any other folder itself.

    Only for readers of files: uploads and other programs. A complete one is reused, those of earlier adapters are
    removed. Other files in `into` stay, because it may be a folder of the owner's.

    Raises:
        CheckpointError: the adapter or its base can't be read.
    """
    if not is_adapter(folder):
        remove_dense(into, besides=folder)
        return folder
    out = into / _adapter_digest(folder)[:_DIGITS]
    remove_dense(into, besides=out)
    if not out.is_dir():
        begun = out.with_suffix(_BEGUN)
        for name, write in _dense_files(folder).items():
            with atomic_file(begun / name) as file:
                write(file)
        begun.rename(out)
        sync_folder(into)
    return out


def remove_dense(into: Path, besides: Path | None = None) -> None:
    """Removes the folders that `dense_folder` made in `into`, and `into` if nothing is left."""
    for made in into.glob("*"):
        if made != besides and _MADE.fullmatch(made.name):
            shutil.rmtree(made)
    with suppress(OSError):
        into.rmdir()


def _adapter_digest(folder: Path) -> str:
    """A digest of the files of an adapter and of its base."""
    own = [path for path in folder.iterdir() if path.is_file() and (counts(path.name) or path.name == ADAPTER_CONFIG)]
    inputs = {"base": file_digests(base_of(folder)), "adapter": {path.name: file_sha256(path) for path in own}}
    return digest_of({name: dict(files) for name, files in inputs.items()})


def _dense_files(folder: Path) -> dict[str, Callable[[BinaryIO], str]]:
    """Name -> writer of each file of an adapter merged with its base; it returns the SHA-256."""

    def text(data: bytes, out: BinaryIO) -> str:
        out.write(data)
        return sha256_hex(data)

    files: dict[str, Callable[[BinaryIO], str]] = {
        name: partial(text, data) for name, data in small_files(folder).items()
    }
    files[SINGLE] = lambda out: merged_weights(Checkpoint(folder), out)
    return dict(sorted(files.items()))


def merged_weights(tensors: Checkpoint, out: BinaryIO, written: Callable[[int], None] | None = None) -> str:
    """Writes an adapter's weights, merged with its base, as one safetensors file, and returns its SHA-256.

    `written` is called with each tensor's bytes.
    """
    plans = [
        TensorPlan(name, spec.dtype, spec.shape, partial(tensors.tensor, name))
        for name, spec in sorted(tensors.specs.items())
    ]
    return write_safetensors(out, plans, written)


def small_files(folder: Path) -> dict[str, bytes]:
    """Name -> content of the expert's config, generation config and tokenizer files; of an adapter, merged ones."""
    paths = {name: file_of(folder, name) for name in (GENERATION, *TOKENIZER_FILES)}
    small = {name: path.read_bytes() for name, path in paths.items() if path.is_file()}
    return {**small, "config.json": _dense_config(folder)}


def _dense_config(folder: Path) -> bytes:
    """An expert's config.json; an adapter's is its base's, with another vocabulary if the adapter has one."""
    data, changed = file_of(folder, "config.json").read_bytes(), Adapter(folder).config if is_adapter(folder) else {}
    return (json.dumps({**json.loads(data), **changed}, indent=2) + "\n").encode() if changed else data


@dataclass(frozen=True)
class DenseExpert:
    """An expert on this machine.

    Attributes:
        domain: its label.
        folder: dense checkpoint, or an adapter whose base can be found.
        owner: its owner.
        license: SPDX identifier.
        trained: the original expert, if its MLPs are fitted.
        adapter: the adapter that `folder` was merged from.
        hub_id: its name on the hub, if it came from there.
    """

    domain: str
    folder: Path
    owner: str = "local"
    license: str = "unknown"
    trained: Self | None = None
    adapter: Path | None = None
    hub_id: str | None = None

    @cached_property
    def files(self) -> dict[str, str]:
        """Name -> SHA-256 of its files."""
        checkpoint = self.checkpoint
        found = file_digests(self.folder)
        checkpoint.require_unchanged()
        return found

    @cached_property
    def digest(self) -> str:
        """Its name, from the digests of its files."""
        return expert_digest(self.files)

    @cached_property
    def config(self) -> PretrainedConfig:
        return read_config(self.folder)

    @cached_property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(self.folder)

    @cached_property
    def family(self) -> Family:
        return family_of(self.config)


def counts(name: str) -> bool:
    """Tell whether a file of that name belongs to an expert."""
    return name in _OTHER_FILES or is_weights(name)


def is_weights(name: str) -> bool:
    """Tell whether a file of that name holds weights; the other files are small."""
    return name.endswith(".safetensors")


def expert_digest(files: Mapping[str, str]) -> str:
    """The expert's name: a digest of its files' names and digests."""
    return digest_of({"expert": dict(files)})


def check_expert(
    folder: Path, reference: Path | None, who: str, vocabulary: Vocabulary = "same"
) -> tuple[Family, PretrainedConfig]:
    """Requires a complete checkpoint of a known family, compatible with `reference` if there is one.

    Reads configs, tokenizers and tensor headers only; arguments and errors are those of `check_small_files`.
    """
    family, config = check_small_files(folder, reference, who, vocabulary)
    require_tensors(Checkpoint(folder), config)
    return family, config


def check_small_files(
    folder: Path, reference: Path | None, who: str, vocabulary: Vocabulary = "same"
) -> tuple[Family, PretrainedConfig]:
    """Requires a config and a tokenizer of a known family, like those of `reference` if there is one.

    `who` names the expert in errors. With `vocabulary="pad"` the longer of the two vocabularies may add tokens behind
    those of the shorter.

    Raises:
        CheckpointError, IncompatibleExpertError: name the field, file or tensor.
    """
    require_plain_config(folder)
    for name in (*TOKENIZER_FILES, GENERATION):  # each is read whole later
        if (path := file_of(folder, name)).is_file():
            require_small(path, _MAX_TEXT_BYTES)
    require_side_files(folder)
    config = read_config(folder)
    family = family_of(config)
    if reference is not None:
        require_same_config(read_config(reference), config, who, vocabulary)
        require_same_tokenizer(reference, folder, who, vocabulary)
    return family, config


def require_finite(checkpoint: Checkpoint, tracker: Tracker) -> None:
    """Requires that every weight is finite, with one tensor in memory at a time.

    Raises:
        CheckpointError: names the first tensor with NaN or infinity.
    """
    for name, spec in checkpoint.specs.items():
        tensor = checkpoint.tensor(name)
        if not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(
                "contains NaN or infinity", where=f"{spec.file.name}: {name}", todo="train the expert again"
            )
        tracker.advance(tensor.nbytes)
