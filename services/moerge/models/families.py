"""The table of families: each dense family's equivalent stock MoE class, with names and settings."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from transformers import PretrainedConfig

from moerge.errors import IncompatibleExpertError

EMBEDDING, HEAD, FINAL_NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
"""The same in every family."""


@dataclass(frozen=True)
class Attention:
    """The linear modules of one layer's attention, as patterns over {layer}.

    Attributes:
        inputs: modules that read the layer's input; the last one ends with the value projection's rows.
        output: the output projection of the heads.
        gain: name of the weight of the norm before the inputs, [H]; None if they read the raw residual.
    """

    inputs: tuple[str, ...]
    output: str
    gain: str | None


@dataclass(frozen=True)
class Demand:
    """A dense setting with its allowed values (for a list, of its members), and the reason.

    `name` is a config field, with a dot before a key of a mapping. A missing field is allowed.
    """

    name: str
    allowed: tuple[object, ...]
    why: str

    def invalid(self, config: PretrainedConfig) -> object:
        """The first invalid value, or None."""
        value: object = config.to_dict()
        for part in self.name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        values = value if isinstance(value, list) else [value]
        return next((item for item in values if item is not None and item not in self.allowed), None)


@dataclass(frozen=True)
class Family:
    """One dense model_type. Names are patterns over {layer} and {expert}.

    Attributes:
        mlp: a dense MLP tensor's name -> the names of its equal blocks of rows, as one expert of the published model.
        heads: a dense body tensor's name -> its blocks of rows, each a published name and the config field that
            counts its attention heads. Every other body tensor keeps its name.
        zeros: published tensors that must be zero: name -> shape, in numbers and config fields.
        router: name of the published router, [D, H].
        router_module: transformers' module of that router; it returns (logits, weights [n, k], experts [n, k]).
        gain: name of the weight of the norm before the MLP, [H]; None if the MLP reads the raw residual.
        added: in that case the norms whose outputs are added to the residual: after attention, after the MLP.
        attention: the linear modules of a layer's attention.
        experts: the published config field that counts experts.
        copied: config fields that are copied.
        renamed: published config field -> the dense field with its value.
        fixed: further config fields of the published class.
        demands: requirements of the dense config for an exact equivalent.
    """

    model_type: str
    published_type: str
    published_class: str
    mlp: Mapping[str, tuple[str, ...]]
    router: str
    router_module: str
    gain: str | None
    attention: Attention
    experts: str
    copied: tuple[str, ...]
    heads: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    zeros: Mapping[str, tuple[str | int, ...]] = field(default_factory=dict)
    added: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, object] = field(default_factory=dict)
    demands: tuple[Demand, ...] = ()

    def dense_mlp_names(self, layers: int) -> list[str]:
        return [dense.format(layer=layer) for layer in range(layers) for dense in self.mlp]

    def mlp_blocks(self, layers: int, expert: int) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Dense name of every MLP tensor, and the published names of its equal blocks of rows in slot `expert`."""
        for layer in range(layers):
            for dense, published in self.mlp.items():
                names = tuple(name.format(layer=layer, expert=expert) for name in published)
                yield dense.format(layer=layer), names

    def head_blocks(self, config: PretrainedConfig) -> dict[str, list[tuple[str, int]]]:
        """Dense name of every body tensor that is published in blocks -> each block's name and number of rows."""
        return {
            dense.format(layer=layer): [
                (name.format(layer=layer), getattr(config, count) * head_dim(config)) for name, count in blocks
            ]
            for layer in range(config.num_hidden_layers)
            for dense, blocks in self.heads.items()
        }

    def zero_shapes(self, config: PretrainedConfig) -> dict[str, tuple[int, ...]]:
        return {
            name.format(layer=layer): tuple(size if isinstance(size, int) else getattr(config, size) for size in shape)
            for layer in range(config.num_hidden_layers)
            for name, shape in self.zeros.items()
        }


def head_dim(config: PretrainedConfig) -> int:
    """Width of one attention head, given or implied."""
    given = getattr(config, "head_dim", None)
    return int(given if given is not None else config.hidden_size // config.num_attention_heads)


_LAYER = "model.layers.{layer}."
_MIXTRAL_EXPERT = _LAYER + "block_sparse_moe.experts.{expert}."
_QWEN_EXPERT = _LAYER + "mlp.experts.{expert}."
_PROJECTIONS = ("gate_proj.weight", "up_proj.weight", "down_proj.weight")
_SHARED_SIZE = 16  # the minimum of transformers' kernels
_COMMON = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "max_position_embeddings",
    "initializer_range",
    "rms_norm_eps",
    "attention_dropout",
    "rope_parameters",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
)
_INPUTS = tuple(_LAYER + f"self_attn.{name}_proj" for name in ("q", "k", "v"))
_OUTPUT = _LAYER + "self_attn.o_proj"
_NO_BIAS = "Mixtral has no biases"
_MIXTRAL_FIXED = {"router_jitter_noise": 0.0, "output_router_logits": False}
_QWEN_FIXED = {
    "norm_topk_prob": True,
    "output_router_logits": False,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}

_MISTRAL = Family(
    model_type="mistral",
    published_type="mixtral",
    published_class="MixtralForCausalLM",
    mlp={
        _LAYER + "mlp." + dense: (_MIXTRAL_EXPERT + published,)
        for dense, published in zip(_PROJECTIONS, ("w1.weight", "w3.weight", "w2.weight"), strict=True)
    },
    router=_LAYER + "block_sparse_moe.gate.weight",
    router_module=_LAYER + "mlp.gate",
    gain=_LAYER + "post_attention_layernorm.weight",
    attention=Attention(_INPUTS, _OUTPUT, gain=_LAYER + "input_layernorm.weight"),
    experts="num_local_experts",
    copied=(*_COMMON, "sliding_window"),
    fixed=_MIXTRAL_FIXED,
)
_LLAMA = replace(
    _MISTRAL,
    model_type="llama",
    copied=_COMMON,
    fixed={**_MIXTRAL_FIXED, "sliding_window": None},
    demands=(Demand("mlp_bias", (False,), _NO_BIAS), Demand("attention_bias", (False,), _NO_BIAS)),
)
_PHI3 = replace(
    _MISTRAL,
    model_type="phi3",
    mlp={
        _LAYER + "mlp.gate_up_proj.weight": (_MIXTRAL_EXPERT + "w1.weight", _MIXTRAL_EXPERT + "w3.weight"),
        _LAYER + "mlp.down_proj.weight": (_MIXTRAL_EXPERT + "w2.weight",),
    },
    heads={
        _LAYER + "self_attn.qkv_proj.weight": tuple(
            (name + ".weight", "num_attention_heads" if name.endswith("q_proj") else "num_key_value_heads")
            for name in _INPUTS
        )
    },
    attention=Attention((_LAYER + "self_attn.qkv_proj",), _OUTPUT, gain=_LAYER + "input_layernorm.weight"),
    copied=(*_COMMON, "sliding_window", "original_max_position_embeddings"),
    demands=(Demand("rope_parameters.partial_rotary_factor", (1.0,), "Mixtral rotates the whole head"),),
)
_QWEN3 = Family(
    model_type="qwen3",
    published_type="qwen3_moe",
    published_class="Qwen3MoeForCausalLM",
    mlp={_LAYER + "mlp." + name: (_QWEN_EXPERT + name,) for name in _PROJECTIONS},
    router=_LAYER + "mlp.gate.weight",
    router_module=_LAYER + "mlp.gate",
    gain=_LAYER + "post_attention_layernorm.weight",
    attention=Attention(_INPUTS, _OUTPUT, gain=_LAYER + "input_layernorm.weight"),
    experts="num_experts",
    copied=(*_COMMON, "attention_bias"),
    renamed={"moe_intermediate_size": "intermediate_size"},
    fixed={**_QWEN_FIXED, "use_sliding_window": False, "sliding_window": None},
    demands=(Demand("layer_types", ("full_attention",), "Qwen3MoE has no windows that differ from layer to layer"),),
)
_QWEN2 = replace(
    _QWEN3,
    model_type="qwen2",
    published_type="qwen2_moe",
    published_class="Qwen2MoeForCausalLM",
    zeros={
        _LAYER + "mlp.shared_expert.gate_proj.weight": (_SHARED_SIZE, "hidden_size"),
        _LAYER + "mlp.shared_expert.up_proj.weight": (_SHARED_SIZE, "hidden_size"),
        _LAYER + "mlp.shared_expert.down_proj.weight": ("hidden_size", _SHARED_SIZE),
        _LAYER + "mlp.shared_expert_gate.weight": (1, "hidden_size"),
    },
    copied=(*_COMMON, "use_sliding_window", "sliding_window", "max_window_layers", "layer_types"),
    fixed={**_QWEN_FIXED, "shared_expert_intermediate_size": _SHARED_SIZE, "qkv_bias": True},
    demands=(),
)
_OLMO2 = replace(
    _QWEN3,
    model_type="olmo2",
    published_type="flex_olmo",
    published_class="FlexOlmoForCausalLM",
    gain=None,
    added=(_LAYER + "post_attention_layernorm.weight", _LAYER + "post_feedforward_layernorm.weight"),
    attention=Attention(_INPUTS, _OUTPUT, gain=None),
    renamed={},
    fixed={"norm_topk_prob": True, "output_router_logits": False},
    demands=(),
)
FAMILIES = {family.model_type: family for family in (_LLAMA, _MISTRAL, _PHI3, _QWEN2, _QWEN3, _OLMO2)}

_SANDWICH = "norms after attention and MLP as well as before them"
_MIXTURE = "it is a mixture of moerge tune, and a version must load with stock transformers (law 6)"
REFUSED = {
    "apertus": "its MLPs have no gate",
    "exaone4": "its norms come after attention and MLP",
    "gemma2": f"{_SANDWICH}, and capped logits",
    "gemma3_text": _SANDWICH,
    "gemma4_text": _SANDWICH,
    "glm4": _SANDWICH,
    "gpt_neox": "its MLPs have no gate, and biases",
    "minicpm3": "multi-head latent attention",
    "moerge_bam": _MIXTURE,
    "moerge_bts": _MIXTURE,
    "moerge_heterogeneous": _MIXTURE,
    "nemotron": "its MLPs have no gate",
    "stablelm": "layer norms with biases",
    "starcoder2": "its MLPs have no gate, and biases",
}
"""Dense families and mixtures without an equivalent stock MoE class, and the reason."""
_EXPERTS = {"num_experts_per_tok", "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"}


def require_family(model_type: str, fields: Collection[str] = ()) -> Family:
    """The family of a model_type, for a config with these fields; IncompatibleExpertError if there is none."""
    family = FAMILIES.get(model_type)
    if family is None:
        why = REFUSED.get(model_type)
        if why is None and ("moe" in model_type or not _EXPERTS.isdisjoint(fields)):
            todo = "name the dense model of this domain; instead of a version, name the experts that it was merged from"
            problem = f"model_type {model_type!r} is a mixture of experts, and an expert must be dense"
            raise IncompatibleExpertError(problem, where="config.json: model_type", todo=todo)
        problem = f"model_type {model_type!r} has no stock MoE class" + (f": {why}" if why else " in moerge")
        known = f"use one of the supported families: {', '.join(sorted(FAMILIES))}"
        raise IncompatibleExpertError(problem, where="config.json: model_type", todo=known)
    return family


def family_of(config: PretrainedConfig) -> Family:
    """The family of a dense config; IncompatibleExpertError if no stock MoE class is exactly equivalent."""
    family = require_family(config.model_type, config.to_dict())
    for demand in family.demands:
        if (value := demand.invalid(config)) is not None:
            expected = " or ".join(map(repr, demand.allowed))
            raise IncompatibleExpertError(
                f"{demand.name} = {value!r}, but only {expected} has an exact equivalent: {demand.why}",
                where=f"config.json: {demand.name}",
            )
    return family


def published_family(config: PretrainedConfig) -> Family:
    """A family with the published class of `config`; IncompatibleExpertError if there is none."""
    for family in FAMILIES.values():
        if family.published_type == config.model_type:
            return family
    raise IncompatibleExpertError(
        f"moerge publishes no model_type {config.model_type!r}", where="config.json: model_type"
    )
