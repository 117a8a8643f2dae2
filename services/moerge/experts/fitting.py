"""MLPs fitted to a body: their owner solves them anew, so that with the body they reproduce the expert.

Another body changes the inputs of an expert's MLPs and the residual that they add to. Layer by layer, the MLP's first
matrices become the least-squares fit from their new inputs to their outputs in the expert. Then the last matrix becomes
the fit from its new inputs to the difference of the two residuals. Fitting needs the owner's expert, the body and the
owner's text, but no head, and no other owner's MLPs.

One layer of each model is in memory, and the residuals of all tokens in both. A fitted layer is written at once.
"""

import hashlib
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from moerge.errors import IncompatibleExpertError
from moerge.experts.fitted_files import FittedLayers
from moerge.experts.parts import write_parts
from moerge.experts.residuals import Residuals
from moerge.models.batches import Batch
from moerge.models.dense import domain_weights, expert_weights
from moerge.models.dense_files import Dense, DenseFiles
from moerge.routers.ridge import SOLVER, Ridge
from moerge.threads import one_thread
from moerge_proto.digests import digest_of

SHRINKAGE_TO_EXPERT = 0.25
"""Ridge towards the expert's own matrix, times dimensions per token, in units of the gram's mean diagonal."""


class _LeastSquares:
    """The gram of a module's new inputs, [in, in], and its cross product with the targets, [in, out]; float64."""

    def __init__(self, inputs: int, outputs: int, device: torch.device) -> None:
        self._gram = torch.zeros(inputs, inputs, dtype=torch.float64, device=device)
        self._cross = torch.zeros(inputs, outputs, dtype=torch.float64, device=device)
        self._tokens = 0

    def add(self, inputs: Tensor, targets: Tensor) -> None:
        """Adds inputs [n, in] and targets [n, out], float32."""
        self._gram += inputs.T @ inputs
        self._cross += inputs.T @ targets
        self._tokens += len(inputs)

    @cached_property
    def _ridge(self) -> tuple[float, Tensor]:
        """The ridge, and the factor of gram and ridge, for all solves; nothing can be added afterwards."""
        shrinkage = SHRINKAGE_TO_EXPERT * len(self._gram) / self._tokens * float(self._gram.diagonal().mean())
        return shrinkage, Ridge.of(self._gram, shrinkage).factor

    def solve(self, own: Tensor, projection: Tensor | None = None) -> Tensor:
        """[out, in] like `own`: the fit, shrunk towards `own`; with `projection` [targets, out], to their product."""
        shrinkage, factor = self._ridge
        right = self._cross if projection is None else self._cross @ projection.double()
        return torch.cholesky_solve(right + shrinkage * own.double().T, factor).T.to(own.dtype)


@one_thread()
@torch.inference_mode()
def fit(
    expert: DenseFiles,
    body: Dense,
    batches: Sequence[Batch],
    folder: Path,
    device: str = "cpu",
    done: Callable[[int], None] = lambda tokens: None,
) -> Path:
    """Writes the expert's parts, with MLPs fitted to the body, into `folder`; returns it.

    On one thread, for equal bytes.

    An interrupted fit into the same folder goes on. Two residuals per token, of H float32, are in host memory. `done`
    gets numbers of tokens; every token counts once per layer.

    Raises:
        IncompatibleExpertError: its family normalises the outputs of its MLPs.
    """
    require_fittable(expert)
    fitted = FittedLayers(folder, _work(expert, body, batches, device))
    layers = expert.config.num_hidden_layers
    if missing := [layer for layer in range(layers) if layer not in fitted]:
        fitting = _Fitting(expert, body, batches, torch.device(device), done)
        for layer in range(missing[-1] + 1):
            fitting.layer(layer, fitted)
    places = {pattern.format(layer=layer): layer for layer in range(layers) for pattern in expert.family.mlp}
    write_parts(expert, folder, lambda name: fitted.tensor(places[name], name))
    fitted.clear(layers)
    return folder


def require_fittable(expert: DenseFiles) -> None:
    """Requires MLPs whose outputs are added to the residual unchanged."""
    if expert.family.gain is None:
        problem = f"{expert.family.model_type} normalises the outputs of its MLPs, so they can't be fitted"
        raise IncompatibleExpertError(problem, where=str(expert.folder), todo="set `fit` to false")


def _work(expert: DenseFiles, body: Dense, batches: Sequence[Batch], device: str) -> str:
    """The digest of a fit's inputs, the models by their files' sizes and times."""
    text = hashlib.sha256()
    for batch in batches:
        for tensor in (torch.tensor(batch.input_ids.shape), batch.input_ids, batch.lengths, batch.counted):
            text.update(tensor.numpy().tobytes())
    seen = [(path, path.stat()) for path in (body.checkpoint.path, *sorted(expert.folder.iterdir()))]
    files = "\n".join(f"{path} {result.st_size} {result.st_mtime_ns}" for path, result in seen)
    return digest_of({"files": files, "text": text.hexdigest(), "device": device, "solver": SOLVER})


def _solve_first(fit: _LeastSquares, mlp: nn.Module) -> None:
    for name, module in mlp.named_children():
        if isinstance(module, nn.Linear) and name != "down_proj":
            module.weight.copy_(fit.solve(module.weight, module.weight.T))


class _Fitting:
    def __init__(
        self,
        expert: DenseFiles,
        body: Dense,
        batches: Sequence[Batch],
        device: torch.device,
        done: Callable[[int], None],
    ) -> None:
        self._own = Residuals(expert_weights(expert), batches, device)
        self._new = Residuals(domain_weights(expert, body), batches, device)
        self._expert, self._device, self._done = expert, device, done
        self._counted = [batch.counted.to(device) for batch in batches]
        self._tokens = sum(int(batch.counted.sum()) for batch in batches)

    def layer(self, number: int, fitted: FittedLayers) -> None:
        names = [pattern.format(layer=number) for pattern in self._expert.family.mlp]
        with self._own.held(number), self._new.held(number):
            parameters = {name: self._new.parameter(name) for name in names}
            if number in fitted:
                for name, parameter in parameters.items():
                    parameter.copy_(fitted.tensor(number, name))
                self._own.pass_layer()
                self._new.pass_layer()
                self._done(self._tokens)
                return
            self._attend_and_fit_first()
            self._fit_last()
            fitted.write(number, parameters)
            is_last = number == self._expert.config.num_hidden_layers - 1
            for place in range(0 if is_last else len(self._counted)):
                states = self._new.placed(place)
                self._new.keep(place, states + self._new.layer.mlp(self._new.features(states)))

    def _attend_and_fit_first(self) -> None:
        """Fits the MLP's first matrices from the new input to their outputs in the expert.

        Then the expert's residuals are those behind the layer, the others those before its MLP.
        """
        own, new, hidden = self._own, self._new, self._expert.config.hidden_size
        fit = _LeastSquares(hidden, hidden, self._device)
        for place, tokens in enumerate(self._counted):
            before, states = own.attended(place), new.attended(place)
            features = own.features(before)
            fit.add(new.features(states)[tokens], features[tokens])
            own.keep(place, before + own.layer.mlp(features))
            new.keep(place, states)
        _solve_first(fit, new.layer.mlp)

    def _fit_last(self) -> None:
        """Fits the last matrix to the difference of the expert's residual and the present one."""
        new, seen = self._new, list[Tensor]()
        module = new.layer.mlp.down_proj
        fit = _LeastSquares(module.in_features, module.out_features, self._device)
        handle = module.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        for place, tokens in enumerate(self._counted):
            states = new.placed(place)
            new.layer.mlp(new.features(states))
            fit.add(seen.pop()[tokens], (self._own.placed(place) - states)[tokens])
            self._done(int(tokens.sum()))
        handle.remove()
        module.weight.copy_(fit.solve(module.weight))
