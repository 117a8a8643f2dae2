"""An expert as a folder: its files, its digest, and its compatibility with other experts."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import torch
from transformers import PretrainedConfig

from moerge.errors import CheckpointError
from moerge.files import file_sha256, require_small
from moerge.models.config import (
    read_config,
    require_plain_config,
    require_same_config,
    require_same_tokenizer,
)
from moerge.models.families import Family, family_of
from moerge.models.reader import INDEX, SINGLE, Checkpoint, require_tensors
from moerge.models.side_files import GENERATION, SPECIAL_TOKENS, TEMPLATE, TOKENIZER, require_side_files
from moerge.progress import Tracker
from moerge_proto.digests import digest_of
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
_OTHER_FILES = ("config.json", GENERATION, INDEX, *TOKENIZER_FILES)


def expert_files(folder: Path) -> dict[str, Path]:
    """Name -> path of the expert's files: config, weights, tokenizer. Other files are never sent.

    Raises:
        CheckpointError: there are no safetensors weights, or no config.
    """
    checkpoint = Checkpoint(folder)
    read_config(folder)
    weights = {spec.file for spec in checkpoint.specs.values()}
    others = {folder / name for name in _OTHER_FILES if (folder / name).is_file()}
    if folder / SINGLE in weights:
        others.discard(folder / INDEX)  # stale
    return {path.name: path for path in sorted(weights | others)}


def file_digests(folder: Path) -> dict[str, str]:
    """Name -> SHA-256 of the expert's files.

    Raises:
        CheckpointError: as in `expert_files`.
    """
    return {name: file_sha256(path) for name, path in expert_files(folder).items()}


@dataclass(frozen=True)
class DenseExpert:
    """An expert on this machine.

    Attributes:
        domain: its label.
        folder: dense checkpoint.
        owner: its owner.
        license: SPDX identifier.
        trained: the original expert, if its MLPs are fitted.
        hub_id: its name on the hub, if it came from there.
    """

    domain: str
    folder: Path
    owner: str = "local"
    license: str = "unknown"
    trained: Self | None = None
    hub_id: str | None = None

    @cached_property
    def files(self) -> dict[str, str]:
        """Name -> SHA-256 of its files."""
        return file_digests(self.folder)

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
        if (folder / name).is_file():
            require_small(folder / name, _MAX_TEXT_BYTES)
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
