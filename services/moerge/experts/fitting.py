"""MLPs fitted to a trunk: their owner solves them anew, so that with the trunk they reproduce the expert.

A merged trunk changes the inputs of an expert's MLPs and the residual that they add to. Layer by layer, the MLP's first
matrices become the least-squares fit from their new inputs to their outputs in the expert. Then the last matrix becomes
the fit from its new inputs to the difference of the two residuals. In the last layer the target is the residual for
which the trunk's head gives the logits of the expert's head. Fitting needs the owner's expert, the trunk and the
owner's text, but no other owner's MLPs.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from moerge.errors import IncompatibleExpertError
from moerge.files import atomic_file
from moerge.models.adapters import file_of
from moerge.models.batches import Batch
from moerge.models.config import read_config, trunk_settings
from moerge.models.dense import domain_model, expert_model, place
from moerge.models.expert_folder import TOKENIZER_FILES, DenseExpert
from moerge.models.families import family_of
from moerge.models.reader import Checkpoint
from moerge.models.stored import SINGLE
from moerge.models.writer import TensorPlan, write_safetensors
from moerge.routers.ridge import Ridge
from moerge.threads import one_thread
from moerge.trunk.regmean import head_alignment

SHRINKAGE_TO_EXPERT = 0.25
"""Ridge towards the expert's own matrix, times dimensions per token, in units of the gram's mean diagonal."""


class _InputReached(Exception):  # noqa: N818  # not an error: it ends a pass
    """Carries a module's input."""

    def __init__(self, states: Tensor) -> None:
        self.states = states


class _Identity(nn.Module):
    """Replaces a layer whose output is already in the states."""

    def forward(self, hidden_states: Tensor, **kwargs: object) -> Tensor:
        return hidden_states


class _Residuals:
    """Residuals of all batches in a dense model, computed half a layer at a time.

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
            raise _InputReached(given[0])

        handle = self.layers[layer].post_attention_layernorm.register_forward_pre_hook(stop)
        for number, states in enumerate(self.states):
            try:
                self._decoder(inputs_embeds=states, use_cache=False)
            except _InputReached as reached:
                self.states[number] = reached.states
        handle.remove()
        self._decoder.layers[layer] = _Identity()

    def features(self, layer: int, number: int) -> Tensor:
        """The input of a layer's MLP for a batch, [B, T, H]."""
        normed: Tensor = self.layers[layer].post_attention_layernorm(self.states[number])
        return normed

    def add_mlp(self, layer: int, number: int) -> None:
        self.states[number] = self.states[number] + self.layers[layer].mlp(self.features(layer, number))


class _LeastSquares:
    """The gram of a module's new inputs, [in, in], and its cross product with the targets, [in, out]; float64."""

    def __init__(self, inputs: int, outputs: int, device: torch.device) -> None:
        self.gram = torch.zeros(inputs, inputs, dtype=torch.float64, device=device)
        self.cross = torch.zeros(inputs, outputs, dtype=torch.float64, device=device)
        self.tokens = 0

    def add(self, inputs: Tensor, targets: Tensor) -> None:
        """Adds inputs [n, in] and targets [n, out], float32."""
        self.gram += inputs.T @ inputs
        self.cross += inputs.T @ targets
        self.tokens += len(inputs)

    def solve(self, own: Tensor, projection: Tensor | None = None) -> Tensor:
        """[out, in] like `own`: the fit, shrunk towards `own`; with `projection` [targets, out], to their product."""
        shrinkage = SHRINKAGE_TO_EXPERT * len(self.gram) / self.tokens * float(self.gram.diagonal().mean())
        right = self.cross if projection is None else self.cross @ projection.double()
        factor = Ridge.of(self.gram.clone(), shrinkage).factor
        return torch.cholesky_solve(right + shrinkage * own.double().T, factor).T.to(own.dtype)


def fit(
    expert: Path,
    trunk: Path,
    batches: Sequence[Batch],
    folder: Path,
    device: str = "cpu",
    done: Callable[[int], None] = lambda tokens: None,
) -> Path:
    """Writes the expert with MLPs fitted to the trunk into `folder`; returns it. See `fit_mlps` and `write_fitted`."""
    return write_fitted(expert, trunk, fit_mlps(expert, trunk, batches, device, done), folder)


@one_thread()
@torch.inference_mode()
def fit_mlps(
    expert: Path,
    trunk: Path,
    batches: Sequence[Batch],
    device: str = "cpu",
    done: Callable[[int], None] = lambda tokens: None,
) -> dict[str, Tensor]:
    """The expert's MLPs, fitted to the trunk, by their dense names; on one thread, for equal bytes.

    Args:
        expert: the owner's dense checkpoint folder.
        trunk: the trunk's safetensors file.
        batches: the owner's text; two residuals per token, of H float32, are in memory.
        device: torch device.
        done: called with numbers of tokens; every token counts once per layer.

    Raises:
        IncompatibleExpertError: its family normalises the outputs of its MLPs.
    """
    config = read_config(expert)
    require_fittable(config, expert)
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
        targets = own.states
        if layer == config.num_hidden_layers - 1:
            targets = _through_head(own, new.model, _counts(batches, config.vocab_size).to(device))
        _fit_last(targets, new, counted, layer)
        for number, tokens in enumerate(counted):
            new.add_mlp(layer, number)
            done(int(tokens.sum()))
    new.model.model.layers = nn.ModuleList(new.layers)
    fitted = new.model.state_dict()
    return {name: fitted[name].cpu() for name in family.dense_mlp_names(config.num_hidden_layers)}


def fitting_bytes(expert: DenseExpert, tokens: int) -> int:
    """The least memory to fit to a number of tokens.

    It is that of both models and three vectors of each token in float32, and of a last matrix's gram, an addend and the
    factor in float64.
    """
    config = expert.config
    elements = sum(torch.Size(spec.shape).numel() for spec in expert.checkpoint.specs.values())
    vectors = 3 * tokens * config.hidden_size
    return int(4 * (2 * elements + vectors) + 8 * 3 * config.intermediate_size**2)


def require_fittable(config: PretrainedConfig, expert: Path) -> None:
    """Requires MLPs whose outputs are added to the residual unchanged; `expert` is the config's folder.

    Raises:
        IncompatibleExpertError: the family normalises them.
    """
    if family_of(config).gain is None:
        found = f"{config.model_type} normalises the outputs of its MLPs, so they can't be fitted"
        raise IncompatibleExpertError(found, where=str(expert), todo="leave out --fit")


def _counts(batches: Sequence[Batch], vocabulary: int) -> Tensor:
    """[V] float64: each token's count."""
    ids = torch.cat([batch.input_ids[batch.counted] for batch in batches])
    return torch.bincount(ids, minlength=vocabulary).double()


def _fit_first(own: _Residuals, new: _Residuals, counted: Sequence[Tensor], layer: int) -> None:
    """Fits the MLP's first matrices from the new input to their outputs in the expert."""
    hidden = new.states[0].shape[-1]
    fit = _LeastSquares(hidden, hidden, new.model.device)
    for number, tokens in enumerate(counted):
        fit.add(new.features(layer, number)[tokens], own.features(layer, number)[tokens])
    for name, module in new.layers[layer].mlp.named_children():
        if isinstance(module, nn.Linear) and name != "down_proj":
            module.weight.copy_(fit.solve(module.weight, module.weight.T))


def _fit_last(targets: Sequence[Tensor], new: _Residuals, counted: Sequence[Tensor], layer: int) -> None:
    """Fits the last matrix to the difference of target residuals, [B, T, H] of each batch, and present ones."""
    mlp = new.layers[layer].mlp
    module = mlp.down_proj
    fit = _LeastSquares(module.in_features, module.out_features, new.model.device)
    seen: list[Tensor] = []
    handle = module.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    for number, tokens in enumerate(counted):
        mlp(new.features(layer, number))
        fit.add(seen.pop()[tokens], (targets[number] - new.states[number])[tokens])
    handle.remove()
    module.weight.copy_(fit.solve(module.weight))


def _through_head(own: _Residuals, behind: PreTrainedModel, counts: Tensor) -> list[Tensor]:
    """[B, T, H] of each batch: residuals for which the trunk's head gives nearly the expert's logits."""
    alignment = head_alignment(behind.lm_head.weight[: len(counts)], own.model.lm_head.weight, counts)
    gain = behind.model.norm.weight.double()
    inverse = torch.where(gain == 0, 0.0, 1 / torch.where(gain == 0, 1.0, gain))
    targets = []
    for states in own.states:
        size = (states.pow(2).mean(dim=-1, keepdim=True) + own.model.config.rms_norm_eps).sqrt()
        last = own.model.model.norm(states).double() @ alignment.T * inverse
        targets.append((last * size).to(states.dtype))
    return targets


def write_fitted(expert: Path, trunk: Path, mlps: Mapping[str, Tensor], folder: Path) -> Path:
    """Writes a dense checkpoint: the trunk with fitted MLPs in the expert's dtypes; returns its folder.

    It is a complete expert: a version uses its MLPs, and it runs alone.
    """
    config, own, merged = read_config(expert), Checkpoint(expert), Checkpoint(trunk)
    plans = [TensorPlan(name, at.dtype, at.shape, partial(merged.tensor, name)) for name, at in merged.specs.items()]
    for name, fitted in mlps.items():
        dtype = own.specs[name].dtype
        plans.append(TensorPlan(name, dtype, tuple(fitted.shape), partial(fitted.to, dtype)))
    fields = json.loads(file_of(expert, "config.json").read_text(encoding="utf-8"))
    fields |= trunk_settings(config, {plan.name: plan.shape for plan in plans})
    for name in TOKENIZER_FILES:
        if (path := file_of(expert, name)).is_file():
            with atomic_file(folder / name) as out:
                out.write(path.read_bytes())
    with atomic_file(folder / "config.json") as out:
        out.write((json.dumps(fields, indent=2) + "\n").encode())
    with atomic_file(folder / SINGLE) as out:
        write_safetensors(out, plans)
    return folder
