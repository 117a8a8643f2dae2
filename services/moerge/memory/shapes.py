"""The numbers of parameters of a model's parts, by its config."""

from dataclasses import dataclass
from typing import Self

import torch
from transformers import PretrainedConfig

from moerge.models.bounds import attention_size
from moerge.models.families.common import LAYER
from moerge.models.families.registry import family_of
from moerge.models.reader import model_shapes
from moerge_proto.statistics_file import gram_length

_FIRST = LAYER.format(layer=0)


def layer_parameters(config: PretrainedConfig) -> int:
    """Parameters of one layer of a dense model or a published version."""
    return sum(torch.Size(shape).numel() for name, shape in model_shapes(config).items() if name.startswith(_FIRST))


@dataclass(frozen=True)
class Shape:
    """The sizes of a dense model."""

    hidden: int  # H
    layers: int  # L
    intermediate: int  # width of an MLP, M
    vocabulary: int  # V
    attention_size: int  # width of the attention's output, A
    layer: int  # parameters of a layer
    mlp: int  # parameters of a layer's MLP
    body: int  # parameters of a body: everything but MLPs and head
    largest: int  # elements of the body's largest tensor
    tied: bool  # whether the head is the embedding
    number: int  # bytes of a number

    @classmethod
    def of(cls, config: PretrainedConfig, dtype: torch.dtype | str | None) -> Self:
        """The sizes of a config's dense model, with numbers in `dtype`; in float32 if that is no torch dtype.

        Raises:
            IncompatibleExpertError: the family is unknown.
        """
        layers = int(config.num_hidden_layers)
        sizes = {name: torch.Size(shape).numel() for name, shape in model_shapes(config).items()}
        family = family_of(config)
        mlps = set(family.dense_mlp_names(layers))
        rest = [size for name, size in sizes.items() if name not in {*mlps, *family.head_names}]
        return cls(
            hidden=int(config.hidden_size),
            layers=layers,
            intermediate=int(config.intermediate_size),
            vocabulary=int(config.vocab_size),
            attention_size=attention_size(config),
            layer=sum(size for name, size in sizes.items() if name.startswith(_FIRST)),
            mlp=sum(sizes[name] for name in mlps) // layers,
            body=sum(rest),
            largest=max(rest),
            tied=bool(config.tie_word_embeddings),
            number=(dtype if isinstance(dtype, torch.dtype) else torch.float32).itemsize,
        )

    @property
    def embedding(self) -> int:
        """Parameters of the embedding, and of the language model head: V H."""
        return self.vocabulary * self.hidden

    @property
    def head(self) -> int:
        """Parameters of a head of its own: last norm and language model head."""
        return self.hidden + self.embedding

    @property
    def expert(self) -> int:
        """Parameters of an expert; a tied head counts once."""
        return self.body + self.layers * self.mlp + self.head - self.tied * self.embedding

    @property
    def widest(self) -> int:
        return max(self.hidden, self.attention_size)

    def triangles(self, *, body: bool) -> list[int]:
        """Integers of each gram of a body contribution, or of a router contribution, over all layers."""
        hidden, attention = gram_length(self.hidden), gram_length(self.attention_size)
        return [hidden, attention] * self.layers if body else [hidden] * self.layers
