"""Names and config fields that many families share."""

from transformers import PretrainedConfig

from moerge.models.families.family import Matrix, layer_ranges

LAYER = "model.layers.{layer}."
PROJECTIONS: dict[str, Matrix] = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down"}
MLP = {LAYER + f"mlp.{name}.weight": (matrix,) for name, matrix in PROJECTIONS.items()}
FUSED_MLP: dict[str, tuple[Matrix, ...]] = {
    LAYER + "mlp.gate_up_proj.weight": ("gate", "up"),
    LAYER + "mlp.down_proj.weight": ("down",),
}
INPUTS = tuple(LAYER + f"self_attn.{name}_proj" for name in ("q", "k", "v"))
OUTPUT = LAYER + "self_attn.o_proj"
BEFORE_ATTENTION, BEFORE_MLP = LAYER + "input_layernorm.weight", LAYER + "post_attention_layernorm.weight"
NO_BIAS = "Mixtral has no biases"
COPIED = (
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


def layer_starts(config: PretrainedConfig, number: int) -> tuple[str, ...]:
    """The starts of the names of a layer's tensors, among the layers with an MLP."""
    return tuple(LAYER.format(layer=layer) for layer in layer_ranges(config)[number])
