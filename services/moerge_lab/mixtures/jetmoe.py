"""BAM with shared keys and values, in the stock class `JetMoeForCausalLM`."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from transformers import JetMoeConfig, JetMoeForCausalLM, PretrainedConfig

from moerge.errors import IncompatibleExpertError
from moerge.models.families.family import head_dim
from moerge_lab.mixtures.base import INITIAL_DEVIATION, common_config, dense_state

NORM_EPS = 1e-6
"""Fixed in the stock class's layers, whatever the config says."""
_EXPERTS = {
    "self_attention.experts.input_linear.weight": ("self_attn.q_proj",),
    "self_attention.experts.output_linear.weight": ("self_attn.o_proj",),
    "mlp.input_linear.weight": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.output_linear.weight": ("mlp.down_proj",),
}
"""A layer's stock tensor -> the dense modules whose rows it stacks, expert by expert."""


def jetmoe(members: Mapping[str, Path], seed: int) -> JetMoeForCausalLM:
    """Members' queries with outputs, and their MLPs, as experts; the average of everything else; random routers.

    All experts run for every token, with the weights of a softmax.

    Raises:
        IncompatibleExpertError: the members differ, or the stock class has no equivalent.
    """
    dense = common_config(members)
    _require_exact(dense)
    model = JetMoeForCausalLM(_config(dense, len(members)))
    states = [dense_state(folder) for folder in members.values()]
    generator, result = torch.Generator().manual_seed(seed), dict[str, Tensor]()
    for name, parameter in model.state_dict().items():
        start, _, part = name.partition(".self_attention." if ".self_attention." in name else ".mlp.")
        if not part:
            result[name] = _mean(states, name)
        elif part.endswith("router.layer.weight"):
            result[name] = torch.randn(parameter.shape, generator=generator) * INITIAL_DEVIATION
        elif part.endswith("bias"):
            result[name] = torch.zeros(parameter.shape)
        elif part == "kv_proj.weight":
            result[name] = torch.cat([_mean(states, f"{start}.self_attn.{item}_proj.weight") for item in "kv"])
        else:
            blocks = [f"{start}.{item}.weight" for item in _EXPERTS[name.removeprefix(f"{start}.")]]
            result[name] = torch.stack([torch.cat([state[block] for block in blocks]) for state in states])
    model.load_state_dict(result)
    model.eval()
    return model


def _mean(states: list[dict[str, Tensor]], name: str) -> Tensor:
    return torch.stack([state[name].double() for state in states]).mean(0).float()


def _require_exact(dense: PretrainedConfig) -> None:
    """Requires a dense config that the stock class computes exactly."""
    heads = dense.num_attention_heads
    demands = {
        "model_type": (dense.model_type, ("llama", "mistral"), "it has neither biases nor norms of heads"),
        "num_key_value_heads": (dense.num_key_value_heads, (heads,), "each query head has keys and values of its own"),
        "sliding_window": (getattr(dense, "sliding_window", None), (None,), "its attention has no window"),
        "rms_norm_eps": (dense.rms_norm_eps, (NORM_EPS,), "it is fixed there"),
    }
    for name, (value, allowed, why) in demands.items():
        if value not in allowed:
            expected = " or ".join(map(repr, allowed))
            raise IncompatibleExpertError(
                f"{name} = {value!r}, but JetMoE can hold only {expected}: {why}",
                where=f"config.json: {name}",
                todo="leave shared-kv out: bam keeps every expert's keys and values, in all families",
            )


def _config(dense: PretrainedConfig, experts: int) -> JetMoeConfig:
    return JetMoeConfig(
        vocab_size=dense.vocab_size,
        hidden_size=dense.hidden_size,
        num_hidden_layers=dense.num_hidden_layers,
        num_key_value_heads=dense.num_key_value_heads,
        kv_channels=head_dim(dense),
        intermediate_size=dense.intermediate_size,
        max_position_embeddings=dense.max_position_embeddings,
        activation_function=dense.hidden_act,
        num_local_experts=experts,
        num_experts_per_tok=experts,
        output_router_logits=False,  # else the loss has the stock class's load balancing
        bos_token_id=dense.bos_token_id,
        eos_token_id=dense.eos_token_id,
        pad_token_id=dense.pad_token_id,
        tie_word_embeddings=dense.tie_word_embeddings,
        rope_parameters=dense.rope_parameters,
        rms_norm_eps=dense.rms_norm_eps,
        initializer_range=dense.initializer_range,
        attention_dropout=dense.attention_dropout,
    )
