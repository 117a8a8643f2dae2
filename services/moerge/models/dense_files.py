"""A dense model's files, each opened once: config, weights, tokenizer and other small files."""

from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from transformers import PretrainedConfig, PreTrainedTokenizerBase

from moerge.files import require_own
from moerge.models.adapters import file_of, is_adapter, tokenizer_folder
from moerge.models.config import dense_config, is_wrapped, read_config
from moerge.models.families.family import Family
from moerge.models.families.registry import family_of
from moerge.models.reader import Checkpoint
from moerge.models.tokenizer import open_tokenizer
from moerge.models.wrappers import described
from moerge_proto.ranges import Source


class Dense(Protocol):
    """A dense model or a body in files."""

    @property
    def checkpoint(self) -> Checkpoint: ...
    @property
    def config(self) -> PretrainedConfig: ...
    @property
    def family(self) -> Family: ...


class _Opened:
    """Base of objects that open their files once; a pickled one has no open files."""

    def __getstate__(self) -> dict[str, Any]:
        kind, items = type(self), vars(self).items()
        return {key: value for key, value in items if not isinstance(getattr(kind, key, None), cached_property)}


class DenseFiles(_Opened):
    """A dense checkpoint in a folder, or an adapter whose base is available."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def config(self) -> PretrainedConfig:
        return read_config(self.folder)

    @cached_property
    def family(self) -> Family:
        return family_of(self.config)

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """The weights; an adapter's are merged while read."""
        result = self.stored()
        result.leave_out(self.family.unread(self.config), "keys and values of layers that read an earlier one's")
        return result

    def stored(self) -> Checkpoint:
        """All stored tensors."""
        return Checkpoint(self.folder)

    @cached_property
    def is_adapter(self) -> bool:
        return is_adapter(self.folder)

    @cached_property
    def is_wrapped(self) -> bool:
        """Tell whether its config.json is a wrapper's, of which only the text model is read."""
        return is_wrapped(self.folder)

    @cached_property
    def left_out(self) -> str:
        """A sentence on the tensors that aren't read, as a vision tower's; empty if there are none."""
        parts = described(self.checkpoint.parts)
        return f"only its text model is read, {self.config.model_type}; left out: {parts}" if parts else ""

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer, without running code of the folder; CheckpointError if it can't be read."""
        return open_tokenizer(tokenizer_folder(self.folder))

    def side_file(self, name: str) -> Path:
        """The path of a small file; it may be missing, and is no link out of the folder. See `file_of`."""
        return require_own(file_of(self.folder, name))


class DenseBody(_Opened):
    """A body: a safetensors file in the dense family's names, and the config of a dense model of its architecture."""

    def __init__(self, source: Source, config: PretrainedConfig) -> None:
        self.source, self._config = source, config

    @cached_property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint.of_file(self.source)

    @cached_property
    def config(self) -> PretrainedConfig:
        return dense_config(self._config, self.checkpoint.shapes)

    @cached_property
    def family(self) -> Family:
        return family_of(self._config)
