"""The family table: for each dense family, the stock MoE class that computes the same, and every name and setting."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from transformers import PretrainedConfig

from moerge.errors import IncompatibleExpertError


@dataclass(frozen=True)
class Family:
    """One dense model_type. Names are patterns over {layer} and {expert}.

    Attributes:
        mlp: a dense MLP tensor's name -> its name as one expert of the published model.
        router: name of the published router, [D, H].
        router_module: where transformers keeps that router; it returns (logits, weights [n, k], experts [n, k]).
        gain: name of the norm weight that makes the MLP's input, [H].
        copied: config fields that carry over as they are.
        fixed: config fields that the published class needs.
        demanded: dense config field -> (the only value with an exact equivalent, why).
    """

    model_type: str
    published_type: str
    published_class: str
    mlp: Mapping[str, str]
    router: str
    router_module: str
    gain: str
    copied: tuple[str, ...]
    fixed: Mapping[str, object] = field(default_factory=dict)
    demanded: Mapping[str, tuple[object, str]] = field(default_factory=dict)

    def mlp_names(self, layer: int, expert: int) -> dict[str, str]:
        """Dense name -> published name of every MLP tensor of one layer, with the expert in slot `expert`."""
        return {
            dense.format(layer=layer): published.format(layer=layer, expert=expert)
            for dense, published in self.mlp.items()
        }

    def dense_mlp_names(self, layers: int) -> list[str]:
        """Every MLP tensor's dense name, layer by layer."""
        return [name for layer in range(layers) for name in self.mlp_names(layer, 0)]


_DENSE_MLP = "model.layers.{layer}.mlp."
_MIXTRAL_EXPERT = "model.layers.{layer}.block_sparse_moe.experts.{expert}."
_MIXTRAL_MLP = {
    _DENSE_MLP + "gate_proj.weight": _MIXTRAL_EXPERT + "w1.weight",
    _DENSE_MLP + "up_proj.weight": _MIXTRAL_EXPERT + "w3.weight",
    _DENSE_MLP + "down_proj.weight": _MIXTRAL_EXPERT + "w2.weight",
}
_MIXTRAL_ROUTER = "model.layers.{layer}.block_sparse_moe.gate.weight"
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
_NO_BIAS = "Mixtral has no biases"

_LLAMA = Family(
    model_type="llama",
    published_type="mixtral",
    published_class="MixtralForCausalLM",
    mlp=_MIXTRAL_MLP,
    router=_MIXTRAL_ROUTER,
    router_module="model.layers.{layer}.mlp.gate",
    gain="model.layers.{layer}.post_attention_layernorm.weight",
    copied=_COMMON,
    fixed={"sliding_window": None, "router_jitter_noise": 0.0, "output_router_logits": False},
    demanded={"mlp_bias": (False, _NO_BIAS), "attention_bias": (False, _NO_BIAS)},
)
_MISTRAL = replace(
    _LLAMA,
    model_type="mistral",
    copied=(*_COMMON, "sliding_window"),
    fixed={"router_jitter_noise": 0.0, "output_router_logits": False},
    demanded={},
)
FAMILIES = {family.model_type: family for family in (_LLAMA, _MISTRAL)}


def family_of(config: PretrainedConfig) -> Family:
    """The family of a dense config.

    Raises:
        IncompatibleExpertError: no stock MoE class computes exactly what this model does.
    """
    family = FAMILIES.get(config.model_type)
    if family is None:
        known = ", ".join(sorted(FAMILIES))
        raise IncompatibleExpertError(
            f"model_type {config.model_type!r} has no stock MoE class here; known: {known}",
            where="config.json: model_type",
        )
    for name, (value, why) in family.demanded.items():
        if (found := getattr(config, name, value)) != value:
            raise IncompatibleExpertError(
                f"{name} = {found!r}, but only {value!r} has an exact equivalent: {why}", where=f"config.json: {name}"
            )
    return family


def published_family(config: PretrainedConfig) -> Family:
    """A family that is published as the class of `config`.

    Raises:
        IncompatibleExpertError: none is.
    """
    for family in FAMILIES.values():
        if family.published_type == config.model_type:
            return family
    raise IncompatibleExpertError(
        f"model_type {config.model_type!r} is not one that moerge publishes", where="config.json: model_type"
    )
