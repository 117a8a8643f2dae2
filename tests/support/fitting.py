"""MLPs fitted to a body with both models whole in memory: what the streamed fit must give, byte for byte."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from moerge.experts.fitting import SHRINKAGE_TO_EXPERT
from moerge.models.batches import Batch
from moerge.models.dense import domain_model, expert_model
from moerge.models.dense_files import DenseFiles
from support.models import on_body


class _Reached(Exception):  # noqa: N818  # not an error: it ends a pass
    def __init__(self, states: Tensor) -> None:
        self.states = states


class _Passed(nn.Module):
    def forward(self, hidden_states: Tensor, **kwargs: object) -> Tensor:
        return hidden_states


def _stop(module: nn.Module, given: tuple[Tensor, ...]) -> None:
    raise _Reached(given[0])


def _attend(model: Any, layers: Sequence[Any], number: int, states: list[Tensor]) -> None:
    """Adds a layer's attention to all residuals, and takes the layer from the model."""
    handle = layers[number].post_attention_layernorm.register_forward_pre_hook(_stop)
    for place, state in enumerate(states):
        try:
            model.model(inputs_embeds=state, use_cache=False)
        except _Reached as reached:
            states[place] = reached.states
    handle.remove()
    model.model.layers[number] = _Passed()


def _solved(inputs: Sequence[Tensor], targets: Sequence[Tensor], weight: Tensor, projection: Tensor | None) -> Tensor:
    """The ridge towards `own`: products in float32, sums in float64."""
    gram = torch.zeros(inputs[0].shape[1], inputs[0].shape[1], dtype=torch.float64)
    cross = torch.zeros(inputs[0].shape[1], targets[0].shape[1], dtype=torch.float64)
    for item, target in zip(inputs, targets, strict=True):
        gram += item.T @ item
        cross += item.T @ target
    shrinkage = SHRINKAGE_TO_EXPERT * len(gram) / sum(map(len, inputs)) * float(gram.diagonal().mean())
    right = cross if projection is None else cross @ projection.double()
    gram.diagonal().add_(shrinkage)
    factor = torch.linalg.cholesky(gram)
    return torch.cholesky_solve(right + shrinkage * weight.double().T, factor).T.to(weight.dtype)


@torch.inference_mode()
def whole_fit(expert: Path, body: Path, batches: Sequence[Batch]) -> dict[str, Tensor]:
    """The fitted MLPs' tensors by name, float32."""
    dense, behind = (expert_model(DenseFiles(expert)), domain_model(*on_body(expert, body))[0])
    old, new = list(dense.model.layers), list(behind.model.layers)
    wanted, states = ([model.model.embed_tokens(batch.input_ids) for batch in batches] for model in (dense, behind))
    counted = [batch.counted for batch in batches]
    for number, (before, after) in enumerate(zip(old, new, strict=True)):
        _attend(dense, old, number, wanted)
        _attend(behind, new, number, states)
        inputs = [after.post_attention_layernorm(state)[real] for state, real in zip(states, counted, strict=True)]
        targets = [before.post_attention_layernorm(item)[real] for item, real in zip(wanted, counted, strict=True)]
        for name, module in after.mlp.named_children():
            if isinstance(module, nn.Linear) and name != "down_proj":
                module.weight.copy_(_solved(inputs, targets, module.weight, module.weight.T))
        wanted = [item + before.mlp(before.post_attention_layernorm(item)) for item in wanted]
        hidden = list[Tensor]()
        handle = after.mlp.down_proj.register_forward_pre_hook(lambda _, given, to=hidden: to.append(given[0]))
        for state in states:
            after.mlp(after.post_attention_layernorm(state))
        handle.remove()
        inputs = [item[real] for item, real in zip(hidden, counted, strict=True)]
        targets = [(aim - state)[real] for aim, state, real in zip(wanted, states, counted, strict=True)]
        after.mlp.down_proj.weight.copy_(_solved(inputs, targets, after.mlp.down_proj.weight, None))
        states = [state + after.mlp(after.post_attention_layernorm(state)) for state in states]
    behind.model.layers = nn.ModuleList(new)
    return {name: item for name, item in behind.state_dict().items() if ".mlp." in name}
