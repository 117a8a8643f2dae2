"""MLPs fitted to a body: their owner solves them anew, so that with the body they reproduce the expert.

Another body changes the inputs of an expert's MLPs and the residual that they add to. Layer by layer, the MLP's first
matrices become the least-squares fit from their new inputs to their outputs in the expert. Then the last matrix becomes
the fit from its new inputs to the difference of the two residuals. Fitting needs the owner's expert, the body and the
owner's text, but no head, and no other owner's MLPs.

Under a seed's body, the fit also has public text, on which the seed's answers are the targets. So an expert keeps them
where its owner's text says nothing.

One layer of each model is in memory, and two residuals of each token. A fitted layer is written at once.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn

from moerge.documents.pool import encoded_pool
from moerge.errors import IncompatibleExpertError
from moerge.fits.fitted_files import FittedLayers
from moerge.fits.parts import write_parts
from moerge.fits.residuals import Residuals
from moerge.models.batches import Batch, batches
from moerge.models.dense import domain_weights, expert_weights
from moerge.models.dense_files import Dense, DenseFiles
from moerge.models.families.family import mlp_layers
from moerge.routers.ridge import SOLVER, Ridge
from moerge.threads import one_thread
from moerge_proto.digests import digest_of
from moerge_proto.statistics_file import StatisticsSettings

SHRINKAGE_TO_EXPERT = 0.25
"""Ridge towards the expert's own matrix, times dimensions per token, in units of the gram's mean diagonal."""


PUBLIC_WEIGHT = 0.25
"""Weight of all tokens of public text together, in units of all of the owner's."""


@dataclass(frozen=True)
class PublicText:
    """The texts that come with moerge, in micro-batches, and the seed, whose answers to them an expert keeps."""

    seed: DenseFiles
    batches: Sequence[Batch]

    @classmethod
    def of(cls, seed: DenseFiles, settings: StatisticsSettings) -> Self:
        rows, chunk = encoded_pool(seed.tokenizer, settings.context), seed.family.chunk(seed.config)
        return cls(seed, list(batches(rows, settings.batch_tokens, chunk=chunk)))


class _LeastSquares:
    """The gram of a module's new inputs, [in, in], and their cross products with each target, [in, out]; float64."""

    def __init__(self, inputs: int, outputs: int, targets: int, device: torch.device) -> None:
        self._gram = torch.zeros(inputs, inputs, dtype=torch.float64, device=device)
        self._crosses = [torch.zeros(inputs, outputs, dtype=torch.float64, device=device) for _ in range(targets)]
        self._tokens = 0.0

    def add(self, inputs: Tensor, outputs: Tensor, target: int, weight: float) -> None:
        """Adds inputs [n, in] and a target's outputs [n, out], float32, with a weight per token."""
        self._gram += (inputs.T @ inputs) * weight
        self._crosses[target] += (inputs.T @ outputs) * weight
        self._tokens += len(inputs) * weight

    @cached_property
    def _ridge(self) -> tuple[float, Tensor]:
        """The ridge, and the factor of gram and ridge, for all solves; nothing can be added afterwards."""
        shrinkage = SHRINKAGE_TO_EXPERT * len(self._gram) / self._tokens * float(self._gram.diagonal().mean())
        return shrinkage, Ridge.of(self._gram, shrinkage).factor

    def solve(self, own: Tensor, projections: Sequence[Tensor] = ()) -> Tensor:
        """[out, in] like `own`: the fit, shrunk towards `own`; with a target's projection [outputs, out], to both."""
        shrinkage, factor = self._ridge
        pairs = zip(self._crosses, projections, strict=True)
        crosses = [cross @ projection.double() for cross, projection in pairs] if projections else self._crosses
        right = sum(crosses[1:], start=crosses[0])
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
    public: PublicText | None = None,
) -> Path:
    """Writes the expert's parts, with MLPs fitted to the body, into `folder`; returns it.

    On one thread, for equal bytes. `public` is of a seed's body; under others no expert keeps the seed's answers.

    An interrupted fit into the same folder goes on. Two residuals per token, of H float32, are in host memory. `done`
    gets numbers of the owner's tokens; every one counts once per layer.

    Raises:
        IncompatibleExpertError: its family normalises the outputs of its MLPs.
    """
    require_fittable(expert)
    fitted = FittedLayers(folder, _work(expert, body, batches, device, public))
    places = mlp_layers(expert.config)
    layers = len(places)
    if missing := [layer for layer in range(layers) if layer not in fitted]:
        fitting = _Fitting(expert, body, batches, torch.device(device), done, public)
        for layer in range(missing[-1] + 1):
            fitting.layer(layer, fitted)
    of = {pattern.format(layer=place): layer for layer, place in enumerate(places) for pattern in expert.family.mlp}
    write_parts(expert, folder, lambda name: fitted.tensor(of[name], name))
    fitted.clear(layers)
    return folder


def require_fittable(expert: DenseFiles) -> None:
    """Requires MLPs whose outputs are added to the residual unchanged."""
    if not expert.family.is_fittable:
        problem = f"{expert.family.model_type} normalises the outputs of its MLPs, so they can't be fitted"
        raise IncompatibleExpertError(problem, where=str(expert.folder), todo="set `fit` to false")


def _work(expert: DenseFiles, body: Dense, batches: Sequence[Batch], device: str, public: PublicText | None) -> str:
    """The digest of a fit's inputs, the models by their files' sizes and times."""
    text = hashlib.sha256()
    for batch in (*batches, *(public.batches if public else ())):
        for tensor in (torch.tensor(batch.input_ids.shape), batch.input_ids, batch.lengths, batch.counted):
            text.update(tensor.numpy().tobytes())
    folders = [expert.folder, *([public.seed.folder] if public else [])]
    paths = [body.checkpoint.path, *(path for folder in folders for path in sorted(folder.iterdir()))]
    seen = [(path, path.stat()) for path in paths]
    files = "\n".join(f"{path} {result.st_size} {result.st_mtime_ns}" for path, result in seen)
    weight = PUBLIC_WEIGHT if public else 0
    return digest_of({"files": files, "text": text.hexdigest(), "device": device, "solver": SOLVER, "public": weight})


@dataclass(frozen=True)
class _Target:
    """A model whose answers to a text are fitted to.

    Attributes:
        number: among the targets.
        first: the number of the text's first micro-batch among those of all texts.
        counted: of each micro-batch, the tokens that count.
        weight: of one token.
    """

    number: int
    residuals: Residuals
    first: int
    counted: Sequence[Tensor]
    weight: float

    def places(self) -> Iterator[tuple[int, int, Tensor]]:
        """Of each micro-batch its number in the text and in all texts, and its counted tokens."""
        for place, tokens in enumerate(self.counted):
            yield place, self.first + place, tokens


class _Fitting:
    def __init__(
        self,
        expert: DenseFiles,
        body: Dense,
        batches: Sequence[Batch],
        device: torch.device,
        done: Callable[[int], None],
        public: PublicText | None,
    ) -> None:
        texts, models, family = [batches], [expert], expert.family
        if public is not None:
            texts, models = [*texts, public.batches], [*models, public.seed]
        self._new = Residuals(domain_weights(expert, body), family, [batch for text in texts for batch in text], device)
        self._targets, first = list[_Target](), 0
        tokens = [sum(int(batch.counted.sum()) for batch in text) for text in texts]
        for number, (text, model) in enumerate(zip(texts, models, strict=True)):
            weight = PUBLIC_WEIGHT * tokens[0] / tokens[number] if number else 1.0
            counted = [batch.counted.to(device) for batch in text]
            residuals = Residuals(expert_weights(model), family, text, device)
            self._targets.append(_Target(number, residuals, first, counted, weight))
            first += len(text)
        self._expert, self._device, self._done, self._tokens = expert, device, done, tokens[0]
        self._places = mlp_layers(expert.config)
        self._last = family.mlp_output.removeprefix(f"{family.mlp_module}.")

    def layer(self, number: int, fitted: FittedLayers) -> None:
        names = [pattern.format(layer=self._places[number]) for pattern in self._expert.family.mlp]
        every = [self._new, *(target.residuals for target in self._targets)]
        with ExitStack() as stack:
            for residuals in every:
                stack.enter_context(residuals.held(number))
            parameters = {name: self._new.parameter(name) for name in names}
            if number in fitted:
                for name, parameter in parameters.items():
                    parameter.copy_(fitted.tensor(number, name))
                for residuals in every:
                    residuals.pass_layer()
                self._done(self._tokens)
                return
            self._attend_and_fit_first()
            self._fit_last()
            fitted.write(number, parameters)
            is_last = number == len(self._places) - 1
            for place in range(0 if is_last else len(self._new.states)):
                states = self._new.placed(place)
                self._new.keep(place, self._new.after(states, self._new.features(states)))

    def _attend_and_fit_first(self) -> None:
        """Fits the MLP's first matrices from the new input to their outputs in the targets.

        Then the targets' residuals are those behind the layer, the new ones those before its MLP.
        """
        new, hidden = self._new, self._expert.config.hidden_size
        fit = _LeastSquares(hidden, hidden, len(self._targets), self._device)
        for target in self._targets:
            aim = target.residuals
            for place, number, tokens in target.places():
                before, states = aim.attended(place), new.attended(number)
                features = aim.features(before)
                fit.add(new.features(states)[tokens], features[tokens], target.number, target.weight)
                aim.keep(place, aim.after(before, features))
                new.keep(number, states)
        for name, module in new.mlp.named_children():
            if isinstance(module, nn.Linear) and name != self._last:
                modules = [target.residuals.mlp.get_submodule(name) for target in self._targets]
                module.weight.copy_(fit.solve(module.weight, [aim.weight.T for aim in modules]))

    def _fit_last(self) -> None:
        """Fits the last matrix to the difference of the targets' residuals and the present ones."""
        new, seen = self._new, list[Tensor]()
        module = new.mlp.get_submodule(self._last)
        fit = _LeastSquares(module.in_features, module.out_features, len(self._targets), self._device)
        handle = module.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        for target in self._targets:
            for place, number, tokens in target.places():
                states = new.placed(number)
                new.mlp(new.features(states))
                wanted = (target.residuals.placed(place) - states)[tokens] / new.factor
                fit.add(seen.pop()[tokens], wanted, target.number, target.weight)
                self._done(0 if target.number else int(tokens.sum()))
        handle.remove()
        module.weight.copy_(fit.solve(module.weight))
