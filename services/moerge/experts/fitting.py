"""MLPs fitted to a trunk: an owner solves its expert's MLPs anew, so that behind the trunk they do what it does.

An MLP behind a merged trunk reads other vectors than the one that it was trained on, and what the trunk's attention
adds is not what the expert's own adds. Layer by layer, the MLP's first matrices become the least-squares fit from what
the trunk gives them to what they answered in the expert; then the last one becomes the fit from its new inputs to what
is missing in the residual, so that after each layer the residual is the expert's again as nearly as it can be. In the
last layer it is what makes the trunk's head say what the expert's head says. All of it needs the owner's expert, the
trunk and the owner's own text, and no other owner's MLPs.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from moerge.errors import IncompatibleExpertError
from moerge.files import atomic_file
from moerge.models.batches import Batch
from moerge.models.config import read_config, trunk_settings
from moerge.models.dense import domain_model, expert_model, place
from moerge.models.expert_folder import TOKENIZER_FILES
from moerge.models.families import EMBEDDING, HEAD, family_of
from moerge.models.reader import SINGLE, Checkpoint
from moerge.models.writer import TensorPlan, write_safetensors
from moerge.routers.ridge import Ridge
from moerge.trunk.context_head import without_context
from moerge.trunk.regmean import turn

TOWARDS_OWN = 0.25
"""How strongly a matrix is drawn to the expert's own where hardly any token points: times dimensions per token, in
units of the gram's mean diagonal."""


class _Seen(Exception):  # noqa: N818  # not an error: it ends a pass
    """Carries what a module was given."""

    def __init__(self, states: Tensor) -> None:
        self.states = states


class _Passed(nn.Module):
    """Stands for a layer that the states have passed."""

    def forward(self, hidden_states: Tensor, **kwargs: object) -> Tensor:
        return hidden_states


class _Residuals:
    """A dense model that all batches pass together, half a layer at a time; only their residuals are kept.

    Attributes:
        states: [B, T, H] of each batch.
    """

    def __init__(self, model: PreTrainedModel, batches: Sequence[Batch]) -> None:
        self.model, self._decoder = model, model.model
        self.layers: list[Any] = list(model.model.layers)
        self.states = [self._decoder.embed_tokens(batch.input_ids.to(model.device)) for batch in batches]

    def attend(self, layer: int) -> None:
        """Adds a layer's attention; the layer must be the next one."""

        def stop(module: nn.Module, given: tuple[Tensor, ...]) -> None:
            raise _Seen(given[0])

        handle = self.layers[layer].post_attention_layernorm.register_forward_pre_hook(stop)
        for number, states in enumerate(self.states):
            try:
                self._decoder(inputs_embeds=states, use_cache=False)
            except _Seen as seen:
                self.states[number] = seen.states
        handle.remove()
        self._decoder.layers[layer] = _Passed()

    def features(self, layer: int, number: int) -> Tensor:
        """What a layer's MLP reads of a batch, [B, T, H]."""
        normed: Tensor = self.layers[layer].post_attention_layernorm(self.states[number])
        return normed

    def add_mlp(self, layer: int, number: int) -> None:
        self.states[number] = self.states[number] + self.layers[layer].mlp(self.features(layer, number))


class _Fit:
    """Grams of a module's new inputs, [in, in], and their products with what it should answer, [in, out]."""

    def __init__(self, inputs: int, answers: int, device: torch.device) -> None:
        self.gram = torch.zeros(inputs, inputs, dtype=torch.float64, device=device)
        self.cross = torch.zeros(inputs, answers, dtype=torch.float64, device=device)
        self.tokens = 0

    def add(self, inputs: Tensor, wanted: Tensor) -> None:
        """Adds inputs [n, in] and answers [n, out], float32."""
        self.gram += inputs.T @ inputs
        self.cross += inputs.T @ wanted
        self.tokens += len(inputs)

    def solve(self, own: Tensor, answers: Tensor | None = None) -> Tensor:
        """[out, in] like `own`: the least-squares fit, drawn to `own`. `answers` [wanted, out] multiply the cross."""
        pull = TOWARDS_OWN * len(self.gram) / self.tokens * float(self.gram.diagonal().mean())
        right = self.cross if answers is None else self.cross @ answers.double()
        factor = Ridge.of(self.gram.clone(), pull).factor
        return torch.cholesky_solve(right + pull * own.double().T, factor).T.to(own.dtype)


@torch.inference_mode()
def fit_mlps(
    expert: Path,
    trunk: Path,
    batches: Sequence[Batch],
    device: str = "cpu",
    done: Callable[[int], None] = lambda tokens: None,
) -> dict[str, Tensor]:
    """The expert's MLPs, solved anew for the trunk, by their dense names.

    Args:
        expert: the owner's dense checkpoint folder.
        trunk: the trunk's safetensors file.
        batches: the owner's text; its residuals, twice tokens x H float32, are in memory.
        device: torch device.
        done: called with numbers of tokens, each token as often as there are layers.

    Raises:
        IncompatibleExpertError: its family's MLPs don't write into the residual as they are.
    """
    require_fittable(expert)
    config = read_config(expert)
    family = family_of(config)
    dense, behind = expert_model(expert), domain_model(expert, trunk)[0]
    place(dense, device)
    place(behind, device)
    own, new = _Residuals(dense, batches), _Residuals(behind, batches)
    counted = [batch.counted.to(device) for batch in batches]
    for layer in range(config.num_hidden_layers):
        own.attend(layer)
        new.attend(layer)
        _fit_first(own, new, counted, layer)
        for number in range(len(batches)):
            own.add_mlp(layer, number)
        wanted = own.states
        if layer == config.num_hidden_layers - 1:
            wanted = _through_head(own, new.model, _counts(batches, config.vocab_size).to(device))
        _fit_last(wanted, new, counted, layer)
        for number, tokens in enumerate(counted):
            new.add_mlp(layer, number)
            done(int(tokens.sum()))
    new.model.model.layers = nn.ModuleList(new.layers)
    fitted = new.model.state_dict()
    return {name: fitted[name].cpu() for name in family.dense_mlp_names(config.num_hidden_layers)}


def require_fittable(expert: Path) -> None:
    """Requires that the expert's MLPs write into the residual as they are.

    Raises:
        IncompatibleExpertError: they don't.
    """
    config = read_config(expert)
    if family_of(config).gain is None:
        found = f"{config.model_type} normalises what its MLPs answer, so that they can't be fitted"
        raise IncompatibleExpertError(found, where=str(expert), todo="go on without --fit")


def _counts(batches: Sequence[Batch], vocabulary: int) -> Tensor:
    """[V] float64: how often each token stood."""
    ids = torch.cat([batch.input_ids[batch.counted] for batch in batches])
    return torch.bincount(ids, minlength=vocabulary).double()


def _fit_first(own: _Residuals, new: _Residuals, counted: Sequence[Tensor], layer: int) -> None:
    """The matrices that read the MLP's input answer to the new one what they answered to the expert's."""
    hidden = new.states[0].shape[-1]
    fit = _Fit(hidden, hidden, new.model.device)
    for number, tokens in enumerate(counted):
        fit.add(new.features(layer, number)[tokens], own.features(layer, number)[tokens])
    for name, module in new.layers[layer].mlp.named_children():
        if isinstance(module, nn.Linear) and name != "down_proj":
            module.weight.copy_(fit.solve(module.weight, module.weight.T))


def _fit_last(wanted: Sequence[Tensor], new: _Residuals, counted: Sequence[Tensor], layer: int) -> None:
    """The last matrix answers what is missing in the residual: [B, T, H] wanted of each batch."""
    mlp = new.layers[layer].mlp
    module = mlp.down_proj
    fit = _Fit(module.in_features, module.out_features, new.model.device)
    seen: list[Tensor] = []
    handle = module.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    for number, tokens in enumerate(counted):
        mlp(new.features(layer, number))
        fit.add(seen.pop()[tokens], (wanted[number] - new.states[number])[tokens])
    handle.remove()
    module.weight.copy_(fit.solve(module.weight))


def _through_head(own: _Residuals, behind: PreTrainedModel, counts: Tensor) -> list[Tensor]:
    """[B, T, H] of each batch: residuals to which the trunk's head answers as nearly as it can what the expert's head
    answers to the expert's."""
    turned = turn(behind.lm_head.weight[: len(counts)], own.model.lm_head.weight, counts)
    gain = behind.model.norm.weight.double()
    undone = torch.where(gain == 0, 0.0, 1 / torch.where(gain == 0, 1.0, gain))
    answers = []
    for states in own.states:
        size = (states.pow(2).mean(dim=-1, keepdim=True) + own.model.config.rms_norm_eps).sqrt()
        last = own.model.model.norm(states).double() @ turned.T * undone
        answers.append((last * size).to(states.dtype))
    return answers


def write_fitted(expert: Path, trunk: Path, mlps: Mapping[str, Tensor], folder: Path) -> Path:
    """Writes a dense checkpoint, the trunk with fitted MLPs in the expert's dtypes; returns its folder.

    It is an expert like any other: its MLPs go into a version, and alone it is what an oracle would run, but for
    context heads, of which a dense class may not have as many.
    """
    config, own, merged = read_config(expert), Checkpoint(expert), Checkpoint(trunk)
    tensor, plans = without_context(merged, family_of(config), config), []
    for name, at in merged.specs.items():
        shape = at.shape if name in (EMBEDDING, HEAD) else own.specs[name].shape
        plans.append(TensorPlan(name, at.dtype, shape, partial(tensor, name)))
    for name, fitted in mlps.items():
        dtype = own.specs[name].dtype
        plans.append(TensorPlan(name, dtype, tuple(fitted.shape), partial(fitted.to, dtype)))
    fields = json.loads((expert / "config.json").read_text(encoding="utf-8"))
    fields |= trunk_settings(config, {plan.name: plan.shape for plan in plans})
    for name in TOKENIZER_FILES:
        if (expert / name).is_file():
            with atomic_file(folder / name) as out:
                out.write((expert / name).read_bytes())
    with atomic_file(folder / "config.json") as out:
        out.write((json.dumps(fields, indent=2) + "\n").encode())
    with atomic_file(folder / SINGLE) as out:
        write_safetensors(out, plans)
    return folder
