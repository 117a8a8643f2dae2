"""An expert as a folder: its files, its digest, and its compatibility with other experts."""

import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import BinaryIO, Self

import torch

from moerge.errors import CheckpointError, IncompatibleExpertError
from moerge.files import atomic_file, file_sha256, require_small, sync_folder
from moerge.models.adapters import Adapter, base_of
from moerge.models.config import config_bytes, replaced_settings, require_plain_config, require_same_config
from moerge.models.dense_files import DenseFiles
from moerge.models.families.registry import family_of
from moerge.models.reader import Checkpoint, require_tensors
from moerge.models.rows import described
from moerge.models.side_files import require_side_files
from moerge.models.sources import ADAPTER_CONFIG
from moerge.models.stored import INDEX, SINGLE
from moerge.models.tokenizers import require_same_tokenizer
from moerge.models.wrappers import stock_name
from moerge.models.writer import copies, write_safetensors
from moerge.progress import Tracker
from moerge_proto.digests import digest_of, sha256_hex
from moerge_proto.experts import Vocabulary
from moerge_proto.version_files import GENERATION, TOKENIZER_FILES

_MAX_TEXT_BYTES, _PIECE = 2**26, 2**20
_MOST_CONTAINERS, _MOST_VALUES = 2**20, 2**22  # the tokenizer of 128,000 tokens has 300,000 merges, each a list
_DIGITS, _BEGUN = 16, ".tmp"
_MERGED = re.compile(rf"[0-9a-f]{{{_DIGITS}}}({re.escape(_BEGUN)})?")  # names of folders of merged adapters
_OTHER_FILES = ("config.json", GENERATION, INDEX, *TOKENIZER_FILES)


def expert_files(expert: DenseFiles) -> dict[str, Path]:
    """Name -> path of the expert's files: config, weights, tokenizer. Other files are never sent.

    Raises:
        CheckpointError: there are no safetensors weights, or no config; or the folder is an adapter.
    """
    folder = expert.folder
    if expert.is_adapter:
        raise CheckpointError("the folder is an adapter", where=str(folder), todo="merge it with its base first")
    weights, _ = set(expert.checkpoint.files), expert.config
    others = {path for path in map(expert.side_file, _OTHER_FILES) if path.is_file()}
    if folder / SINGLE in weights:
        others.discard(folder / INDEX)  # stale
    return {path.name: path for path in sorted(weights | others)}


def file_digests(expert: DenseFiles) -> dict[str, str]:
    """Name -> SHA-256 of the expert's files; of an adapter, those that `dense_folder` would write."""
    if expert.is_adapter:
        with Path(os.devnull).open("wb") as nowhere:
            return {name: write(nowhere) for name, write in _dense_files(expert).items()}
    return {name: file_sha256(path) for name, path in expert_files(expert).items()}


def dense_folder(expert: DenseFiles, into: Path) -> Path:
    """A folder with the expert's files, for uploads and other programs: an adapter is merged with its base in `into`.

    A complete merge is reused, and those of earlier adapters are removed. Other files in `into` stay.
    """
    if not expert.is_adapter:
        remove_dense(into, besides=expert.folder)
        return expert.folder
    out = into / _adapter_digest(expert.folder)[:_DIGITS]
    remove_dense(into, besides=out)
    if not out.is_dir():
        begun = out.with_suffix(_BEGUN)
        for name, write in _dense_files(expert).items():
            with atomic_file(begun / name) as file:
                write(file)
        begun.rename(out)
        sync_folder(into)
    return out


def remove_dense(into: Path, besides: Path | None = None) -> None:
    """Removes the folders of `dense_folder` in `into`, and `into` if it is empty."""
    for path in into.glob("*"):
        if path != besides and _MERGED.fullmatch(path.name):
            shutil.rmtree(path)
    with suppress(OSError):
        into.rmdir()


def _adapter_digest(folder: Path) -> str:
    files = [path for path in folder.iterdir() if path.is_file() and (counts(path.name) or path.name == ADAPTER_CONFIG)]
    digests = {path.name: file_sha256(path) for path in files}
    return digest_of({"base": {**file_digests(DenseFiles(base_of(folder)))}, "adapter": {**digests}})


def _dense_files(expert: DenseFiles) -> dict[str, Callable[[BinaryIO], str]]:
    """Name -> writer of each file of an adapter merged with its base, which returns the SHA-256."""

    def text(data: bytes, out: BinaryIO) -> str:
        out.write(data)
        return sha256_hex(data)

    files: dict[str, Callable[[BinaryIO], str]] = {
        name: partial(text, data) for name, data in small_files(expert).items()
    }
    files[SINGLE] = lambda out: merged_weights(expert.checkpoint, out)
    return dict(sorted(files.items()))


def merged_weights(tensors: Checkpoint, out: BinaryIO, written: Callable[[int], None] | None = None) -> str:
    """Writes an adapter's weights, merged with its base, as one safetensors file; see `write_safetensors`."""
    plans = copies(tensors, sorted(tensors.specs))
    renamed = [replace(plan, name=stock_name(plan.name, tensors.specs)) for plan in plans]
    return write_safetensors(out, renamed, written)


def small_files(expert: DenseFiles) -> dict[str, bytes]:
    """Name -> content of the expert's config, generation config and tokenizer files; of an adapter, merged ones.

    A wrapper's config is that of its text model.
    """
    paths = {name: expert.side_file(name) for name in ("config.json", GENERATION, *TOKENIZER_FILES)}
    small = {name: path.read_bytes() for name, path in paths.items() if path.is_file()}
    changed = Adapter(expert.folder).config if expert.is_adapter else {}
    return {**small, "config.json": config_bytes(paths["config.json"], **changed)}


@dataclass(frozen=True)
class DenseExpert(DenseFiles):
    """An expert on this machine.

    Attributes:
        domain: the name of its domain.
        folder: dense checkpoint, or an adapter whose base is available.
        owner: the name of its owner.
        license: SPDX identifier.
        trained: the original expert, if its MLPs are fitted.
        adapter: the adapter that `folder` was merged from.
        hub_id: its name on the hub, if it was downloaded.
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
        """SHA-256 by name of file."""
        checkpoint = self.checkpoint
        result = file_digests(self)
        checkpoint.require_unchanged()
        return result

    @cached_property
    def digest(self) -> str:
        """The digest of all files."""
        return expert_digest(self.files)


def counts(name: str) -> bool:
    """Tell whether a file of that name belongs to an expert."""
    return name in _OTHER_FILES or is_weights(name)


def is_weights(name: str) -> bool:
    """Tell whether a file of that name holds weights; the other files are small."""
    return name.endswith(".safetensors")


def expert_digest(files: Mapping[str, str]) -> str:
    """The expert's digest, from its files' names and digests."""
    return digest_of({"expert": dict(files)})


def require_model(expert: DenseFiles) -> None:
    """Requires a config and weights that can be opened; CheckpointError says what the folder has instead."""
    require_plain_config(expert.side_file("config.json"))
    _ = expert.checkpoint


def check_expert(
    expert: DenseFiles,
    reference: DenseFiles | None,
    who: str,
    vocabulary: Vocabulary = "same",
    say: Callable[[str], None] = lambda text: None,
    texts: Iterable[str] = (),
) -> None:
    """As `check_small_files`, and requires exactly the config's tensors; reads no tensor.

    `say` gets a sentence on tensors of a wrapper that are left out, and one on settings that the version doesn't have.
    """
    require_model(expert)
    check_small_files(expert, reference, who, vocabulary, texts)
    require_tensors(expert.checkpoint, expert.config)
    if expert.left_out:
        say(f"{who}: {expert.left_out}")
    if lost := described(expert):
        say(f"{who}: {lost}")
    if reference is not None and (replaced := _replaced(reference, expert, "the first expert")):
        say(f"{who}: {replaced}")


def _replaced(reference: DenseFiles, expert: DenseFiles, others: str) -> str:
    """A sentence on settings that a version has from `reference`, named `others`, in place of the expert's."""
    names = replaced_settings(reference.config, expert.config)
    context, sentences = "max_position_embeddings", list[str]()
    if other := [name for name in names if name != context]:
        sentences.append(f"versions have {', '.join(other)} of {others}; no logit depends on them")
    if context in names:
        least = min(getattr(item.config, context) for item in (reference, expert))
        sentences.append(f"its context differs from that of {others}; versions have at most {least:,} tokens")
    return "; ".join(sentences)


def check_small_files(
    expert: DenseFiles,
    reference: DenseFiles | None,
    who: str,
    vocabulary: Vocabulary = "same",
    texts: Iterable[str] = (),
) -> None:
    """Requires config and tokenizer of a known family, compatible with `reference`; `who` names the expert in errors.

    With `vocabulary="pad"`, one of the two vocabularies may append tokens to the other. `texts`: see
    `require_same_tokenizer`.

    Raises:
        CheckpointError, IncompatibleExpertError: name the field, file or tensor.
    """
    require_plain_config(expert.side_file("config.json"))
    for name in (*TOKENIZER_FILES, GENERATION):  # each is read whole later
        if (path := expert.side_file(name)).is_file():
            require_small(path, _MAX_TEXT_BYTES)
            if path.suffix == ".json":
                _require_few_values(path)
    require_side_files(expert)
    family_of(expert.config)
    if reference is not None:
        require_same_config(reference.config, expert.config, who, vocabulary)
        require_same_tokenizer(reference, expert, who, vocabulary, texts=texts)


def require_of_seed(seed: DenseFiles, expert: DenseFiles, who: str, named: str, texts: Iterable[str] = ()) -> str:
    """Require an expert with the seed's config and tokenizer; the errors call them `who` and the seed `named`.

    `texts`: see `require_same_tokenizer`.

    Returns:
        A sentence on settings that versions have from the seed, or nothing.

    Raises:
        IncompatibleExpertError: names the fields, or the part of the tokenizer, that differ.
    """
    own, tokens = seed.config.vocab_size, expert.config.vocab_size
    if own != tokens:
        problem = f"{who} has {tokens:,} tokens, the seed {named} {own:,}: added tokens aren't in the seed's embedding"
        todo = (
            f"train it without added tokens, remove rows without a token by model.resize_token_embeddings({own}), "
            "or use a merged body, which has these rows"
        )
        raise IncompatibleExpertError(problem, where="config.json: vocab_size", todo=todo)
    require_same_config(seed.config, expert.config, who, "same", f"the seed {named}")
    require_same_tokenizer(seed, expert, who, "same", f"the seed {named}", texts)
    return _replaced(seed, expert, "the seed")


def require_finite(checkpoint: Checkpoint, tracker: Tracker) -> None:
    """Requires finite weights, one tensor in memory at a time; CheckpointError names the first other tensor."""
    for name, spec in checkpoint.specs.items():
        tensor = checkpoint.tensor(name)
        if not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(
                "contains NaN or infinity", where=f"{spec.file.name}: {name}", todo="train the expert again"
            )
        tracker.advance(tensor.nbytes)


def _require_few_values(path: Path) -> None:
    """Requires JSON that takes bounded memory and time to parse, by its marks; those in texts count too."""
    containers = values = 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            containers += piece.count(b"[") + piece.count(b"{")
            values += piece.count(b",")
    for count, most, name in ((containers, _MOST_CONTAINERS, "lists and objects"), (values, _MOST_VALUES, "values")):
        if count > most:
            todo = "use the seed model's own file; those of all known models are far smaller"
            raise CheckpointError(f"expected at most {most} {name}, found {count}", where=str(path), todo=todo)
