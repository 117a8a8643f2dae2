"""A dense model's files, each opened once: config, weights, tokenizer and other small files."""

from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from transformers import AutoTokenizer, PretrainedConfig, PreTrainedTokenizerBase

from moerge.errors import MoergeError
from moerge.models.adapters import file_of, is_adapter, tokenizer_folder
from moerge.models.config import read_config, trunk_config
from moerge.models.families import Family, family_of
from moerge.models.reader import Checkpoint
from moerge_proto.ranges import Source


class Dense(Protocol):
    """The tensors of a dense model or of a trunk, with the model's config."""

    @property
    def checkpoint(self) -> Checkpoint: ...
    @property
    def config(self) -> PretrainedConfig: ...
    @property
    def family(self) -> Family: ...


class _Opened:
    """A base of objects that open their files once. A pickled one has none of them open."""

    def __getstate__(self) -> dict[str, Any]:
        kind = type(self)
        return {key: it for key, it in vars(self).items() if not isinstance(getattr(kind, key, None), cached_property)}


class DenseFiles(_Opened):
    """A dense checkpoint in a folder, or an adapter whose base can be found.

    Args:
        folder: of the files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def config(self) -> PretrainedConfig:
        """See `read_config`."""
        return read_config(self.folder)

    @cached_property
    def family(self) -> Family:
        return family_of(self.config)

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """The weights; an adapter's are merged while read."""
        return Checkpoint(self.folder)

    @cached_property
    def is_adapter(self) -> bool:
        return is_adapter(self.folder)

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer. Code in the folder is never run.

        Raises:
            MoergeError: there is none, or it can't be read.
        """
        place = tokenizer_folder(self.folder)
        try:
            tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
                place, local_files_only=True, trust_remote_code=False
            )
        except (OSError, ValueError) as error:
            todo = "save the expert's tokenizer in its folder (tokenizer.save_pretrained)"
            raise MoergeError("the tokenizer can't be read", where=str(self.folder), todo=todo) from error
        return tokenizer

    def side_file(self, name: str) -> Path:
        """The path of a small file; it may be missing. See `file_of`."""
        return file_of(self.folder, name)


class DenseTrunk(_Opened):
    """A trunk: a safetensors file in the dense family's names.

    Args:
        source: the file.
        expert: a dense model of its architecture.
    """

    def __init__(self, source: Source, expert: Dense) -> None:
        self.source, self.expert = source, expert

    @cached_property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint.of_file(self.source)

    @cached_property
    def config(self) -> PretrainedConfig:
        """The config of the dense models on this trunk."""
        return trunk_config(self.expert.config, self.checkpoint.shapes)

    @property
    def family(self) -> Family:
        return self.expert.family
