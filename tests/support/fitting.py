"""MLPs fitted to a body with both models whole in memory: what the streamed fit must give, byte for byte."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from moerge.fits.fitting import PUBLIC_WEIGHT, SHRINKAGE_TO_EXPERT, PublicText
from moerge.models.batches import Batch
from moerge.models.dense import domain_model, expert_model
from moerge.models.dense_files import DenseFiles
from moerge.models.families.common import LAYER
from moerge.models.families.family import module_of
from moerge.models.families.registry import family_of
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
    handle = _norm(layers[number], model).register_forward_pre_hook(_stop)
    for place, state in enumerate(states):
        try:
            model.model(inputs_embeds=state, use_cache=False)
        except _Reached as reached:
            states[place] = reached.states
    handle.remove()
    model.model.layers[number] = _Passed()


def _norm(layer: nn.Module, model: Any) -> Any:
    """The norm before the layer's MLP."""
    return layer.get_submodule(module_of(f"{family_of(model.config).gain}").removeprefix(LAYER))


def _mlp(layer: nn.Module, model: Any) -> Any:
    return layer.get_submodule(family_of(model.config).mlp_module.removeprefix(LAYER))


def _solved(
    inputs: Sequence[Tensor],
    targets: Sequence[tuple[Sequence[Tensor], float, Tensor | None]],
    weight: Tensor,
) -> Tensor:
    """The ridge towards `weight`: products in float32, sums in float64.

    `targets` are of the inputs' texts in turn: outputs, a token's weight, and a projection of the cross product.
    """
    gram = torch.zeros(inputs[0].shape[1], inputs[0].shape[1], dtype=torch.float64)
    right, tokens, left = torch.zeros(len(gram), len(weight), dtype=torch.float64), 0.0, iter(inputs)
    for outputs, share, projection in targets:
        cross = torch.zeros(len(gram), outputs[0].shape[1], dtype=torch.float64)
        for output in outputs:
            item = next(left)
            gram += (item.T @ item) * share
            cross += (item.T @ output) * share
            tokens += len(item) * share
        right += cross if projection is None else cross @ projection.double()
    shrinkage = SHRINKAGE_TO_EXPERT * len(gram) / tokens * float(gram.diagonal().mean())
    gram.diagonal().add_(shrinkage)
    factor = torch.linalg.cholesky(gram)
    return torch.cholesky_solve(right + shrinkage * weight.double().T, factor).T.to(weight.dtype)


@torch.inference_mode()
def whole_fit(
    expert: Path, body: Path, batches: Sequence[Batch], public: PublicText | None = None
) -> dict[str, Tensor]:
    """The fitted MLPs' tensors by name, float32."""
    texts = [(DenseFiles(expert), batches), *([(public.seed, public.batches)] if public else [])]
    models: list[Any] = [expert_model(files) for files, _ in texts]
    behind = domain_model(*on_body(expert, body))[0]
    olds, new = [list(model.model.layers) for model in models], list(behind.model.layers)
    every = [batch for _, text in texts for batch in text]
    states = [behind.model.embed_tokens(batch.input_ids) for batch in every]
    wanted = [
        [model.model.embed_tokens(batch.input_ids) for batch in text]
        for model, (_, text) in zip(models, texts, strict=True)
    ]
    counted = [batch.counted for batch in every]
    tokens = [sum(int(batch.counted.sum()) for batch in text) for _, text in texts]
    shares = [1.0, *[PUBLIC_WEIGHT * tokens[0] / item for item in tokens[1:]]]

    def split(items: Sequence[Tensor]) -> list[list[Tensor]]:
        left = iter(items)
        return [[next(left) for _ in text] for _, text in texts]

    family = family_of(behind.config)
    mlps, last = family.dense_mlp_names(behind.config), family.mlp_output.rpartition(".")[2]
    for number, after in enumerate(new):
        output = _mlp(after, behind).get_submodule(last)
        befores = [old[number] for old in olds]
        for model, old, item in zip(models, olds, wanted, strict=True):
            _attend(model, old, number, item)
        _attend(behind, new, number, states)
        inputs = [_norm(after, behind)(state)[real] for state, real in zip(states, counted, strict=True)]
        features = [
            [_norm(before, behind)(item)[real] for item, real in zip(aims, marks, strict=True)]
            for before, aims, marks in zip(befores, wanted, split(counted), strict=True)
        ]
        for name, module in _mlp(after, behind).named_children():
            if isinstance(module, nn.Linear) and name != last:
                projections = [_mlp(before, behind).get_submodule(name).weight.T for before in befores]
                module.weight.copy_(
                    _solved(inputs, list(zip(features, shares, projections, strict=True)), module.weight)
                )
        wanted = [
            [item + _mlp(before, behind)(_norm(before, behind)(item)) for item in aims]
            for before, aims in zip(befores, wanted, strict=True)
        ]
        hidden = list[Tensor]()
        handle = output.register_forward_pre_hook(lambda _, given, to=hidden: to.append(given[0]))
        for state in states:
            _mlp(after, behind)(_norm(after, behind)(state))
        handle.remove()
        inputs = [item[real] for item, real in zip(hidden, counted, strict=True)]
        missing = [
            [(aim - state)[real] for aim, state, real in zip(*item, strict=True)]
            for item in zip(wanted, split(states), split(counted), strict=True)
        ]
        targets = [(outputs, share, None) for outputs, share in zip(missing, shares, strict=True)]
        output.weight.copy_(_solved(inputs, targets, output.weight))
        states = [state + _mlp(after, behind)(_norm(after, behind)(state)) for state in states]
    behind.model.layers = nn.ModuleList(new)
    return {name: item for name, item in behind.state_dict().items() if name in mlps}
