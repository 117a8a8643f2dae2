"""The numbers of parameters of a model's parts, by its config."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from transformers import PretrainedConfig

from moerge.models.bounds import attention_sizes
from moerge.models.families.common import layer_starts
from moerge.models.families.family import EMBEDDING, mlp_layers
from moerge.models.families.registry import FAMILIES, ends_of, family_of
from moerge.models.reader import model_shapes
from moerge_proto.statistics_file import gram_length


def layer_parameters(config: PretrainedConfig) -> int:
    """Parameters of the largest layer of a dense model or a published version."""
    sizes = {name: torch.Size(shape).numel() for name, shape in model_shapes(config).items()}
    return max(_layers(sizes, config))


def layer_tensor(config: PretrainedConfig) -> int:
    """Parameters of the largest tensor of a layer of a dense model or a published version."""
    return max(torch.Size(shape).numel() for name, shape in model_shapes(config).items() if ".layers." in name)


def mixed_numbers(config: PretrainedConfig) -> int:
    """The largest `numbers` of a layer of a dense model or a published version."""
    model_type = config.model_type
    family = next(item for item in FAMILIES.values() if model_type in (item.model_type, item.host.model_type))
    return family.numbers(config)


def position_numbers(config: PretrainedConfig) -> int:
    """Numbers of a position's hidden states, of a dense model or a published version."""
    return int(config.hidden_size) + ends_of(config).carried(config)


def beside_numbers(config: PretrainedConfig) -> int:
    """Numbers of a position on the device for what layers read beside the residual: whole, and while it is made."""
    ends = ends_of(config)
    width = ends.layer_input(config)
    return 2 * ends.carried(config) + (int(config.hidden_size) + 4 * width if width else 0)


def _layers(sizes: Mapping[str, int], config: PretrainedConfig) -> list[int]:
    layers = range(len(mlp_layers(config)))
    places = {start: layer for layer in layers for start in layer_starts(config, layer)}
    result = [0] * len(layers)
    for name, size in sizes.items():
        if (layer := places.get(".".join([*name.split(".")[:3], ""]))) is not None:
            result[layer] += size
    return result


@dataclass(frozen=True)
class Shape:
    """The sizes of a dense model."""

    hidden: int  # H
    layers: int  # L
    intermediate: int  # width of the widest MLP, M
    vocabulary: int  # V
    attention_sizes: tuple[int, ...]  # per layer, width of the input of the attention's output, A; 0 without a gram
    layer: int  # parameters of the largest layer
    tensor: int  # parameters of its largest tensor
    mlp: int  # parameters of a layer's MLP, the mean of all layers
    body: int  # parameters of a body: everything but MLPs and head
    largest: int  # elements of the body's largest tensor
    projection: int  # elements of its largest tensor but the embedding
    position: int  # numbers of a position's hidden states
    beside: int  # numbers of a position on the device that layers read beside the residual
    mixed: int  # float32 numbers of a position in linear attention, if a layer has it
    tied: bool  # whether the head is the embedding
    number: int  # bytes of a number

    @classmethod
    def of(cls, config: PretrainedConfig, dtype: torch.dtype | str | None) -> Self:
        """The sizes of a config's dense model, with numbers in `dtype`; in float32 if that is no torch dtype.

        Raises:
            IncompatibleExpertError: the family is unknown.
        """
        layers = len(mlp_layers(config))
        sizes = {name: torch.Size(shape).numel() for name, shape in model_shapes(config).items()}
        family = family_of(config)
        mlps = set(family.dense_mlp_names(config))
        rest = {name: size for name, size in sizes.items() if name not in {*mlps, *family.head_names}}
        mlp, hidden = sum(sizes[name] for name in mlps) // layers, int(config.hidden_size)
        largest_mlp = max(_layers({name: sizes[name] for name in mlps}, config))
        return cls(
            hidden=hidden,
            layers=layers,
            intermediate=largest_mlp // (len(family.host.experts) * hidden),
            vocabulary=int(config.vocab_size),
            attention_sizes=tuple(attention_sizes(family, config)),
            layer=max(_layers(sizes, config)),
            tensor=layer_tensor(config),
            mlp=mlp,
            body=sum(rest.values()),
            largest=max(rest.values()),
            projection=max(size for name, size in rest.items() if name != EMBEDDING),
            position=position_numbers(config),
            beside=beside_numbers(config),
            mixed=mixed_numbers(config),
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
    def attention_size(self) -> int:
        return max(self.attention_sizes)

    @property
    def widest(self) -> int:
        return max(self.hidden, self.attention_size)

    def contribution(self, *, body: bool) -> int:
        """Bytes of a router contribution, or of a body contribution, without their headers.

        Int64 triangles and sums of each layer, or triangles of two inputs, but for the first, and a count per token.
        """
        inputs = [gram_length(self.hidden)] * self.layers
        if not body:
            return 8 * (sum(inputs) + self.layers * self.hidden)
        outputs = [gram_length(size) for size in self.attention_sizes if size]
        return 8 * (sum(inputs[1:]) + sum(outputs) + self.vocabulary)
