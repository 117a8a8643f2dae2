"""The facts of a dense family and of its host, the equivalent stock MoE class, with names and settings."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from re import sub
from typing import Any, Literal, Protocol, Self

import torch
from torch import Tensor
from transformers import PretrainedConfig

from moerge.errors import IncompatibleExpertError

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
"""The same in every family."""
FINAL_NORM = "model.norm.weight"
"""The same in most families."""

DENSE_CONTEXT = "dense_max_position_embeddings"
"""The published config field with the experts' context, if the version's can be shorter."""

Matrix = Literal["gate", "up", "down"]
"""A matrix of an expert."""

TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
"""Config fields with ids of special tokens."""

UNUSED: Any = object()
"""The effect of a config field on which no logit depends."""
Effect = Callable[[PretrainedConfig], Any]
"""The JSON value on which logits depend in place of a config field's, by the dense config; or UNUSED."""


@dataclass(frozen=True)
class Ends:
    """Computations of a model, dense or published, that no single layer shows; by default none.

    Attributes:
        factor: of the embedding's rows in a model of a dtype.
        logits: from the head's outputs, in place where possible.
        layer_input: width of an input of every layer beside the residual, which follows from the token; 0 without it.
        shared: a type of layers -> number and width of heads whose keys and values later layers of the type read.
    """

    factor: Callable[[PretrainedConfig, torch.dtype], float] = lambda config, dtype: 1.0
    logits: Callable[[Tensor, PretrainedConfig], Tensor] = lambda outputs, config: outputs
    layer_input: Callable[[PretrainedConfig], int] = lambda config: 0
    shared: Callable[[PretrainedConfig], Mapping[str, tuple[int, int]]] = lambda config: {}

    def carried(self, config: PretrainedConfig) -> int:
        """Numbers of a position that layers hand on beside the residual."""
        return sum(2 * heads * width for heads, width in self.shared(config).values())


def mlp_layers(config: PretrainedConfig) -> list[int]:
    """The numbers of transformers' layers that have an MLP, of a dense model or a published version; mostly all.

    They count as the model's layers. A layer without an MLP belongs to the next one that has one; behind the last
    MLP, to the last.
    """
    has_kinds = "layers_block_type" in type(config).attribute_map.values()  # a class of layers with one mixer each
    kinds = config.layer_types if has_kinds else ()
    return [number for number, kind in enumerate(kinds) if kind in ("mlp", "moe")] or [*range(config.num_hidden_layers)]


def layer_ranges(config: PretrainedConfig) -> list[range]:
    """Of each layer with an MLP, the numbers of transformers' layers that belong to it."""
    ends = [number + 1 for number in mlp_layers(config)][:-1]
    return [range(*pair) for pair in pairwise([0, *ends, config.num_hidden_layers])]


def head_dim(config: PretrainedConfig) -> int:
    """Width of one attention head, given or implied."""
    given = getattr(config, "head_dim", None)
    return int(given if given is not None else config.hidden_size // config.num_attention_heads)


def _field(config: PretrainedConfig, name: str) -> int:
    return head_dim(config) if name == "head_dim" else int(getattr(config, name))


@dataclass(frozen=True)
class Constant:
    """A published tensor that no dense tensor corresponds to.

    Attributes:
        shape: numbers and fields of the dense config; `head_dim` may be implied there.
        value: of all its elements, or computed from the dense config and the tensor's dtype.
    """

    name: str
    shape: tuple[str | int, ...]
    value: float | Callable[[PretrainedConfig, torch.dtype], float] = 0.0

    def of(self, config: PretrainedConfig, dtype: torch.dtype) -> Tensor:
        value = self.value if isinstance(self.value, float) else self.value(config, dtype)
        return torch.full(self.size(config), value, dtype=dtype)

    def size(self, config: PretrainedConfig) -> tuple[int, ...]:
        return tuple(part if isinstance(part, int) else _field(config, part) for part in self.shape)

    def at(self, layer: int) -> Self:
        return type(self)(self.name.format(layer=layer), self.shape, self.value)


@dataclass(frozen=True)
class Limited:
    """A limit of vLLM's class of a host: a condition of config.json, the fault as a predicate, and the remedy."""

    when: Callable[[Mapping[str, Any]], bool]
    happens: str
    remedy: str = "start it with --model-impl transformers"


@dataclass(frozen=True)
class LlamaCpp:
    """A host in llama.cpp.

    Attributes:
        refused: why it can't run there, a predicate; empty if it can.
        when: a condition of config.json for `refused`; by default all versions.
        equivalent: the host with the same logits whose class is right there; None: its own class is.
        extended: whether GraniteMoeSWA there has the same layers with windows and any frequencies.
        biased: whether its own class there has biases of the attention's output.
        wide: whether it has heads of another width than hidden_size / num_attention_heads.
        options: of the converter, which fails without them.
        rounded: how its answers differ from float32, as those of its dense models do, a predicate; empty if they don't.
    """

    refused: str = ""
    when: Callable[[Mapping[str, Any]], bool] = lambda config: True
    equivalent: "Host | None" = None
    extended: bool = False
    biased: bool = False
    wide: bool = True
    options: tuple[str, ...] = ()
    rounded: str = ""


@dataclass(frozen=True)
class Host:
    """A stock MoE class that publishes dense families. Names are patterns over {layer}, of experts also over {expert}.

    Attributes:
        experts: each matrix of an expert, in a file's order -> its tensor's name, [M, H] or [H, M]. MLPs may have no
            gate. Without {expert} in the names, the experts are fused: one tensor of a layer has all, [D, 2 M, H] or
            [D, H, M]; matrices of one name are blocks of rows.
        router: name of the router, [D, H].
        router_module: transformers' module of that router; it returns (logits, weights [n, k], experts [n, k]).
        router_weight: the parameter of that module with the router's weight.
        router_of: that weight, from a router of features and the gain of the norm before the MLP, [H].
        router_vectors: name of a further tensor [D] of the router, a bias or factors -> its elements' value.
        count: the config field that counts experts.
        chosen: the config field with the number of experts per token.
        fixed: config fields that are the same for every family.
        final_norm: name of the weight of the norm before the head.
        constants: published tensors of every family, without a dense equivalent.
        title: its name in sentences.
        limited: limits of vLLM's class of it.
        llama_cpp: how llama.cpp runs it. `make test-engines` measures both.
        ends: before the first layer and after the head.
        most_top_k: most experts per token; None: any number. Routers with sigmoids solve the choice, not the weights.
        least_experts: least experts that the class computes with.
    """

    model_type: str
    class_name: str
    experts: Mapping[Matrix, str]
    router: str
    router_module: str
    count: str
    fixed: Mapping[str, object]
    title: str
    llama_cpp: LlamaCpp
    router_weight: str = "weight"
    router_of: Callable[[Tensor, Tensor], Tensor] = lambda router, gain: router
    router_vectors: Mapping[str, float] = field(default_factory=dict)
    chosen: str = "num_experts_per_tok"
    final_norm: str = FINAL_NORM
    limited: tuple[Limited, ...] = ()
    constants: tuple[Constant, ...] = ()
    ends: Ends = Ends()
    most_top_k: int | None = None
    least_experts: int = 1

    @property
    def fused(self) -> bool:
        return not any("{expert}" in name for name in self.experts.values())

    def router_names(self, layers: Sequence[int]) -> list[str]:
        """The names of the tensors of the routers' file."""
        patterns = self.router, *self.router_vectors
        return [name.format(layer=layer) for layer in layers for name in patterns]

    def few(self, experts: int) -> str:
        """The reason against a version of so few experts, or nothing."""
        return f"{self.class_name} needs {self.least_experts} experts" if experts < self.least_experts else ""

    def refusal(self, top_k: int) -> str:
        """The reason against that many experts per token, or nothing."""
        if self.most_top_k is None or top_k <= self.most_top_k:
            return ""
        return f"{top_k} experts per token, but {self.class_name} weights several by sigmoids, not by the solved shares"

    def slots(self, config: PretrainedConfig) -> int:
        """The number of experts of a published config."""
        return int(getattr(config, self.count))

    def top_k(self, config: PretrainedConfig) -> int:
        """The number of experts per token of a published config; 1 of a dense one of the same class."""
        return int(getattr(config, self.chosen, None) or 1)

    def expert_tensors(self, layer: int, slot: int = 0) -> dict[str, list[Matrix]]:
        """The tensors of an expert in a layer, or of all fused ones, each with an expert's matrices in it."""
        tensors = dict[str, list[Matrix]]()
        for matrix, name in self.experts.items():
            tensors.setdefault(name.format(layer=layer, expert=slot), []).append(matrix)
        return tensors


class Tensors(Protocol):
    """The tensors of a model in files."""

    @property
    def specs(self) -> Mapping[str, object]: ...
    def tensor(self, name: str) -> Tensor: ...


def _width(config: PretrainedConfig) -> int:
    return int(config.num_attention_heads * head_dim(config))


def _attended(inputs: Sequence[str], weights: Tensors, config: PretrainedConfig, read: float) -> float:
    """The bound of the heads' outputs, means of values."""
    module, rows = inputs[-1], config.num_key_value_heads * head_dim(config)
    value = read * float(weights.tensor(f"{module}.weight")[-rows:].float().norm())
    if f"{module}.bias" in weights.specs:
        value += float(weights.tensor(f"{module}.bias")[-rows:].float().norm())
    return float(value**2 * config.num_attention_heads / config.num_key_value_heads)


@dataclass(frozen=True)
class Attention:
    """The linear modules of a layer's attention, or of what a layer has instead, as patterns over {layer}.

    Attributes:
        inputs: modules that read the layer's input. Of attention, the last one ends with the value projection's rows.
        output: the module that reads the heads; None if its inputs have no bound. Such a module is averaged.
        gain: name of the weight of the norm before the inputs, [H]; None if they read the raw residual.
        head: number of consecutive rows of an input, and of columns of the output, that are one head.
        width: columns of the output.
        bound: the largest squared norm of the output's input, by the inputs' names, the weights, the dense config and
            the largest norm of the layer's input.
        chunk: rows of a micro-batch are computed at a length that is a multiple of it, by the dense config.
        numbers: most float32 numbers of a position that are in memory at a time, beside the residual.
        packs: whether documents in one row can be kept apart.
    """

    inputs: tuple[str, ...]
    output: str | None
    gain: str | None
    head: Callable[[PretrainedConfig], int] = head_dim
    width: Callable[[PretrainedConfig], int] = _width
    bound: Callable[[Sequence[str], Tensors, PretrainedConfig, float], float] = _attended
    chunk: Callable[[PretrainedConfig], int] = lambda config: 1
    numbers: Callable[[PretrainedConfig], int] = lambda config: 0
    packs: bool = True

    def at(self, layer: int) -> Self:
        inputs = tuple(module.format(layer=layer) for module in self.inputs)
        output, gain = (name and name.format(layer=layer) for name in (self.output, self.gain))
        return replace(self, inputs=inputs, output=output, gain=gain)


@dataclass(frozen=True)
class Demand:
    """A dense setting with its allowed values (for a list, of its members), and the reason.

    `name` is a config field, with a dot before a key of a mapping or a place in a list. A missing field is allowed.
    """

    name: str
    allowed: tuple[object, ...]
    why: str

    def invalid(self, config: PretrainedConfig) -> object:
        """The first invalid value, or None."""
        value: object = config.to_dict()
        for part in self.name.split("."):
            if isinstance(value, list):
                value = value[int(part)]
            else:
                value = value.get(part) if isinstance(value, Mapping) else None
        values = value if isinstance(value, list) else [value]
        return next((item for item in values if item is not None and item not in self.allowed), None)

    def require(self, config: PretrainedConfig) -> None:
        """Require an allowed value; IncompatibleExpertError names the field."""
        if (value := self.invalid(config)) is not None:
            expected = " or ".join(map(repr, self.allowed))
            raise IncompatibleExpertError(
                f"{self.name} = {value!r}, but only {expected} has an exact equivalent: {self.why}",
                where=f"config.json: {self.name}",
            )


@dataclass(frozen=True)
class Piece:
    """A published tensor that is made of one dense tensor.

    Attributes:
        name: its pattern over {layer}.
        of: gives it from the dense tensor, of body or head, and the dense config; a view where possible. The values
            must be exact in the tensor's dtype: rows in another order, products with powers of two, or one rounding.
    """

    name: str
    of: Callable[[Tensor, PretrainedConfig], Tensor]


@dataclass(frozen=True)
class Family:
    """One dense model_type and its host. Names are patterns over {layer}.

    Attributes:
        mlp: a dense MLP tensor's name -> the matrices of which it has equal blocks of rows.
        gain: name of the weight of the norm before the MLP, [H]; None if the MLP reads the raw residual.
        added: in that case the norms whose outputs are added to the residual: after attention, after the MLP.
        mlp_factor: of the MLPs' outputs when they are added to the residual.
        output_norm: name of the weight of the norm of those outputs, before they are added; None without one.
        attention: the linear modules of a layer's attention.
        mixers: a type of layers -> the linear modules of those layers, if they differ from `attention`.
        types: of each layer, by the dense config; by default its `layer_types`.
        zero_centred: names of the weights of norms that multiply by 1 + weight.
        epsilon: the config field with the norms' epsilon.
        final_norm: as in `Host`.
        ends: before the first layer and after the head.
        copied: config fields that are copied, from the seed or the first expert. All must agree on their effects.
        renamed: published config field -> the dense field with its value.
        read: further dense fields that change a logit, which `settings` reads.
        effects: dense field -> its effect, where that isn't the value as written; they replace those of all families.
        fixed: further config fields of the published class; they replace the host's.
        settings: config fields of the published class that are computed from the dense config; they come last.
        pieces: a dense tensor's name -> the published tensors made of it. All others of body and head keep their names.
        constants: further published tensors without a dense equivalent.
        unread: names of tensors that checkpoints of the dense config can have, but the model hasn't.
        demands: requirements of the dense config for an exact equivalent.
        otherwise: the family of configs that don't meet the demands, with another host.
    """

    model_type: str
    host: Host
    mlp: Mapping[str, tuple[Matrix, ...]]
    gain: str | None
    attention: Attention
    copied: tuple[str, ...]
    mixers: Mapping[str, Attention] = field(default_factory=dict)
    types: Callable[[PretrainedConfig], Sequence[str]] = lambda config: config.layer_types
    zero_centred: tuple[str, ...] = ()
    epsilon: str = "rms_norm_eps"
    final_norm: str = FINAL_NORM
    added: tuple[str, ...] = ()
    mlp_factor: Callable[[PretrainedConfig], float] = lambda config: 1.0
    output_norm: str | None = None
    ends: Ends = Ends()
    renamed: Mapping[str, str] = field(default_factory=dict)
    read: tuple[str, ...] = ()
    effects: Mapping[str, Effect] = field(default_factory=dict)
    fixed: Mapping[str, object] = field(default_factory=dict)
    settings: Callable[[PretrainedConfig], Mapping[str, object]] = lambda config: {}
    pieces: Mapping[str, tuple[Piece, ...]] = field(default_factory=dict)
    constants: tuple[Constant, ...] = ()
    unread: Callable[[PretrainedConfig], Sequence[str]] = lambda config: ()
    demands: tuple[Demand, ...] = ()
    otherwise: Self | None = None

    @property
    def is_fittable(self) -> bool:
        """Tell whether MLPs can be fitted to a body: their outputs are added as they are, or times `mlp_factor`."""
        return self.output_norm is None

    @property
    def head_names(self) -> tuple[str, str]:
        """The tensors of the head."""
        return self.final_norm, HEAD

    @property
    def mlp_module(self) -> str:
        """The module of a layer's MLP."""
        return module_of(next(iter(self.mlp))).rpartition(".")[0]

    @property
    def mlp_output(self) -> str:
        """The last linear module of a layer's MLP."""
        [name] = (name for name, matrices in self.mlp.items() if "down" in matrices)
        return module_of(name)

    def attentions(self, config: PretrainedConfig) -> list[Attention]:
        """The linear modules of each layer's attention, or of what it has instead, by their names.

        Of transformers' layers that count as one, the first has them.
        """
        every = self._every_attention(config)
        return [every[layers.start] for layers in layer_ranges(config)]

    def _every_attention(self, config: PretrainedConfig) -> list[Attention]:
        layers = range(config.num_hidden_layers)
        types = self.types(config) if self.mixers else [""] * len(layers)
        return [self.mixers.get(types[layer], self.attention).at(layer) for layer in layers]

    def factors(self, name: str, tensor: Tensor) -> Tensor:
        """The factors of a norm with this weight, in float32 if they differ from it; other tensors unchanged."""
        return 1 + tensor.float() if sub(r"(?<=\.)\d+(?=\.)", "{layer}", name) in self.zero_centred else tensor

    def chunk(self, config: PretrainedConfig) -> int:
        """The length of which a computed row's is a multiple."""
        return max(item.chunk(config) for item in self._every_attention(config))

    def numbers(self, config: PretrainedConfig) -> int:
        """The largest `numbers` of a layer."""
        return max(item.numbers(config) for item in self._every_attention(config))

    def packs(self, config: PretrainedConfig) -> bool:
        """Tell whether documents in one row can be kept apart."""
        return all(item.packs for item in self._every_attention(config))

    def dense_mlp_names(self, config: PretrainedConfig) -> list[str]:
        return [dense.format(layer=layer) for layer in mlp_layers(config) for dense in self.mlp]

    def place(self, matrix: Matrix, layer: int) -> tuple[str, int, int]:
        """Dense name of the tensor with a matrix, the matrix's number among its equal blocks of rows, and theirs."""
        dense, blocks = next((dense, blocks) for dense, blocks in self.mlp.items() if matrix in blocks)
        return dense.format(layer=layer), blocks.index(matrix), len(blocks)

    def pieces_of(self, config: PretrainedConfig) -> dict[str, tuple[Piece, ...]]:
        """Dense name of every tensor that is published in another form -> the tensors made of it."""
        return {
            dense.format(layer=layer): tuple(Piece(piece.name.format(layer=layer), piece.of) for piece in pieces)
            for layer in range(config.num_hidden_layers)
            for dense, pieces in self.pieces.items()
        }

    def constants_of(self, config: PretrainedConfig) -> list[Constant]:
        constants = (*self.host.constants, *self.constants)
        return [constant.at(layer) for layer in mlp_layers(config) for constant in constants]


def module_of(name: str) -> str:
    """The module that has the parameter of that name."""
    return name.rpartition(".")[0]
