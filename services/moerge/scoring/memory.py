"""The memory of scoring, and the hidden states that it has room for."""

from dataclasses import dataclass

import torch
from rich.filesize import decimal
from transformers import AutoConfig, PretrainedConfig

from moerge.errors import MoergeError
from moerge.models.config import published_config
from moerge.models.families import family_of
from moerge.models.weights import Weights
from moerge.scoring.perplexity import BATCH_TOKENS
from moerge.scoring.streamed import StreamedModel
from moerge.statistics.memory import Free, free_for, layer_bytes, states_bytes


@dataclass(frozen=True)
class ScoringNeed:
    """The memory of scoring in bytes, whatever the number of layers.

    Attributes:
        weights: two layers, with all experts of a version; the second is read ahead.
        batch: activations of one micro-batch in one layer.
        head: the head, and the logits of one micro-batch, after the layers.
        least: hidden states of one micro-batch, in host memory.
    """

    weights: int
    batch: int
    head: int
    least: int

    @property
    def device(self) -> int:
        """Where the model is."""
        return self.weights + max(self.batch, self.head)

    def host(self, *, on_gpu: bool = False) -> int:
        """In host memory, without hidden states."""
        return 0 if on_gpu else self.device

    def told(self, place: str) -> str:
        """For a message; `place`: GPU or host."""
        layers = f"two layers {decimal(self.weights)}, a micro-batch {decimal(self.batch)}"
        found = (
            f"scoring needs {decimal(self.device)} of {place} memory ({layers}; head and logits {decimal(self.head)})"
        )
        return f"{found}, and at least {decimal(self.least)} of host memory for hidden states"


def scoring_need(config: PretrainedConfig, dtype: torch.dtype, context: int) -> ScoringNeed:
    """The memory of scoring text in windows of `context`, by the config of a dense model or a published version."""
    hidden, vocabulary, tokens = int(config.hidden_size), int(config.vocab_size), max(BATCH_TOKENS, context)
    inner = int(getattr(config, "moe_intermediate_size", config.intermediate_size))
    chosen = int(getattr(config, "num_experts_per_tok", 1))
    logits = tokens * vocabulary * (dtype.itemsize + (0 if dtype is torch.float32 else 4)) + 8 * context * vocabulary
    return ScoringNeed(
        weights=2 * layer_bytes(config, dtype),
        batch=dtype.itemsize * tokens * (6 * hidden + chosen * (3 * inner + 3 * hidden)),
        head=dtype.itemsize * (vocabulary + tokens) * hidden + logits,
        least=dtype.itemsize * hidden * tokens,
    )


def version_config(expert: PretrainedConfig, experts: int, top_k: int) -> PretrainedConfig:
    """The config of a version of so many experts like this one, before its files are here."""
    fields = published_config(family_of(expert), expert, experts, top_k, "float32", int(expert.vocab_size), False)
    config: PretrainedConfig = AutoConfig.for_model(**fields)
    return config


def room_for_states(need: ScoringNeed, free: Free, host_memory: int | None = None) -> int:
    """The bytes of hidden states: `host_memory`, by default half of the memory that nothing else needs.

    Those of one micro-batch are the least.

    Raises:
        MoergeError: scoring doesn't fit; says by how much.
    """
    left = None if free.host is None else free.host - need.host(on_gpu=free.device is not None)
    if (free.device is not None and need.device > free.device) or (left is not None and need.least > left):
        place, there = ("GPU", free.device) if free.device is not None else ("host", free.host)
        found = f"{need.told(place)}; the {place} has {decimal(there or 0)}"
        raise MoergeError(found, where="memory", todo="use a larger machine, or --precision bfloat16")
    if host_memory is None:
        return max(need.least, states_bytes(left))
    return host_memory if left is None else max(need.least, min(host_memory, left))


def streamed_model(
    weights: Weights,
    precision: str,
    device: str,
    context: int,
    host_memory: int | None = None,
    expert: int | None = None,
) -> StreamedModel:
    """The model, with the hidden states that this machine has room for; for other arguments see `StreamedModel`.

    Raises:
        MoergeError: scoring doesn't fit.
    """
    dtype = getattr(torch, precision)
    states = room_for_states(scoring_need(weights.config, dtype, context), free_for(device), host_memory)
    return StreamedModel(weights, dtype, device, states, expert)
