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
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn

from moerge.documents.pool import encoded_pool
from moerge.errors import IncompatibleExpertError
from moerge.fits.fitted_files import FittedLayers
from moerge.fits.parts import write_parts
from moerge.fits.residuals import HeldLayer, Residuals
from moerge.memory.needs import SUM_ROWS, fitting
from moerge.memory.room import room_on_device
from moerge.memory.shapes import Shape
from moerge.models.batches import Batch, batches
from moerge.models.dense import domain_weights, expert_weights
from moerge.models.dense_files import Dense, DenseFiles
from moerge.models.families.family import mlp_layers
from moerge.routers.ridge import SOLVER, Ridge
from moerge.statistics.features import counted_rows
from moerge.threads import in_order, one_thread
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


@dataclass(frozen=True)
class _Products:
    """Products of a micro-batch's inputs [n, in] with themselves and with outputs [n, out], times a token's weight.

    Attributes:
        gram: the lower triangle in blocks of rows, each up to its last row's column; float32.
        cross: [in, out] float32.
        tokens: the sum of their weights.
    """

    gram: Sequence[Tensor]
    cross: Tensor
    tokens: float

    @classmethod
    def of(cls, inputs: Tensor, outputs: Tensor, weight: float) -> Self:
        gram = [inputs[:, start:end].T @ inputs[:, :end] for start, end in _blocks(inputs)]
        cross = inputs.T @ outputs
        for product in (*gram, cross) if weight != 1 else ():
            product *= weight
        return cls(gram, cross, len(inputs) * weight)


def _blocks(inputs: Tensor) -> Iterator[tuple[int, int]]:
    """The rows of each block of a gram, which is whole on a GPU.

    The last block also has the rest: those of few rows wouldn't have the bits of the whole product.
    """
    size = inputs.shape[1]
    starts = range(0, max(size - SUM_ROWS + 1, 1), SUM_ROWS if inputs.device.type == "cpu" else size)
    return pairwise([*starts, size])


class _LeastSquares:
    """The gram of a module's new inputs, [in, in], and their cross products with each target, [in, out]; float64.

    Only the gram's lower triangle is summed, because a factorisation reads no more.
    """

    def __init__(self, inputs: int, outputs: int, targets: int, device: torch.device) -> None:
        self._gram = torch.zeros(inputs, inputs, dtype=torch.float64, device=device)
        self._crosses = [torch.zeros(inputs, outputs, dtype=torch.float64, device=device) for _ in range(targets)]
        self._tokens = 0.0

    def add(self, products: _Products, target: int) -> None:
        """Adds the products of a micro-batch of a target's text."""
        end = 0
        for block in products.gram:
            start, end = end, block.shape[1]
            self._gram[start:end, :end] += block
        self._crosses[target] += products.cross
        self._tokens += products.tokens

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
    threads: int = 1,
) -> Path:
    """Writes the expert's parts, with MLPs fitted to the body, into `folder`; returns it.

    `public` is of a seed's body; under others no expert keeps the seed's answers. `threads` are micro-batches at a
    time, of one thread each; any number gives the same bytes.

    An interrupted fit into the same folder goes on. Two residuals per token, of H float32, are in memory. `done`
    gets numbers of the owner's tokens; every one counts once per layer.

    Raises:
        IncompatibleExpertError: its family normalises the outputs of its MLPs.
    """
    require_fittable(expert)
    fitted = FittedLayers(folder, _work(expert, body, batches, device, public))
    places = mlp_layers(expert.config)
    layers = len(places)
    if missing := [layer for layer in range(layers) if layer not in fitted]:
        work = _Fitting(expert, body, batches, torch.device(device), done, public, threads)
        for layer in range(missing[-1] + 1):
            work.layer(layer, fitted)
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


_Place = tuple[int, int]
"""A micro-batch: its number in its text and in all texts."""
_Held = tuple[HeldLayer, HeldLayer]
"""A thread's held layers: of the body with the new MLPs, and of a target."""


@dataclass(frozen=True)
class _Target:
    """A model whose answers to a text are fitted to.

    Attributes:
        number: among the targets.
        new: residuals of all texts in the body with the new MLPs.
        residuals: of the text in the model.
        first: the number of the text's first micro-batch among those of all texts.
        weight: of one token.
    """

    number: int
    new: Residuals
    residuals: Residuals
    first: int
    weight: float

    def places(self) -> Iterator[_Place]:
        """Of each micro-batch."""
        for place in range(len(self.residuals.batches)):
            yield place, self.first + place

    def attend(self, held: _Held, at: _Place) -> _Products:
        """Products of the MLP's new input with that in the target.

        Then the target's residual is that behind the layer, the new one that before its MLP.
        """
        (new, aim), (place, number) = held, at
        before, states = aim.attended(place), new.attended(number)
        features = aim.features(before)
        products = self._products(place, new.features(states), features)
        self.residuals.states[place] = aim.after(before, features)
        self.new.states[number] = states
        return products

    def miss(self, held: _Held, at: _Place) -> _Products:
        """Products of the last matrix's new input with the difference of the target's residual and the present one."""
        (new, _), (place, number) = held, at
        states = self.new.states[number]
        wanted = (self.residuals.states[place] - states) / self.residuals.factor
        return self._products(place, new.before_last(new.features(states)), wanted)

    def _products(self, place: int, inputs: Tensor, outputs: Tensor) -> _Products:
        """Those of the tokens that count."""
        batch = self.residuals.batches[place]
        return _Products.of(counted_rows(inputs, batch), counted_rows(outputs, batch), self.weight)


class _Fitting:
    def __init__(
        self,
        expert: DenseFiles,
        body: Dense,
        batches: Sequence[Batch],
        device: torch.device,
        done: Callable[[int], None],
        public: PublicText | None,
        threads: int,
    ) -> None:
        texts, models, family = [batches], [expert], expert.family
        if public is not None:
            texts, models = [*texts, public.batches], [*models, public.seed]
        every = [batch for text in texts for batch in text]
        largest = max(batch.input_ids.numel() for batch in every)
        room = room_on_device(fitting(Shape.of(expert.config, torch.float32), largest, device.type, threads))
        self._new = Residuals(domain_weights(expert, body), family, every, device, threads, room)
        room = self._new.states.room
        self._targets, first = list[_Target](), 0
        tokens = [sum(int(batch.counted.sum()) for batch in text) for text in texts]
        for number, (text, model) in enumerate(zip(texts, models, strict=True)):
            weight = PUBLIC_WEIGHT * tokens[0] / tokens[number] if number else 1.0
            residuals = Residuals(expert_weights(model), family, text, device, threads, room)
            room = residuals.states.room
            self._targets.append(_Target(number, self._new, residuals, first, weight))
            first += len(text)
        self._expert, self._device, self._done, self._tokens = expert, device, done, tokens[0]
        self._places = mlp_layers(expert.config)
        self._threads = ThreadPoolExecutor(threads)

    def layer(self, number: int, fitted: FittedLayers) -> None:
        names = [pattern.format(layer=self._places[number]) for pattern in self._expert.family.mlp]
        every = [self._new, *(target.residuals for target in self._targets)]
        with ExitStack() as stack:
            for residuals in every:
                stack.enter_context(residuals.holding(number))
            parameters = {name: self._new.held[0].parameter(name) for name in names}
            if number in fitted:
                for name, parameter in parameters.items():
                    parameter.copy_(fitted.tensor(number, name))
                for residuals in every:
                    self._run(residuals, HeldLayer.pass_layer)
                self._done(self._tokens)
                return
            self._attend_and_fit_first()
            self._fit_last()
            fitted.write(number, parameters)
            if number < len(self._places) - 1:
                self._run(self._new, HeldLayer.pass_mlp)

    def _run(self, residuals: Residuals, call: Callable[[HeldLayer, int], None]) -> None:
        """Calls a function of the held layer for every micro-batch."""
        for _ in in_order(self._threads, residuals.held, torch.inference_mode()(call), range(len(residuals.batches))):
            pass

    def _products(self, call: Callable[[_Target, _Held, _Place], _Products]) -> Iterator[tuple[_Target, _Products]]:
        """The products of every micro-batch, in order; at most one per thread waits."""
        for target in self._targets:
            held = list(zip(self._new.held, target.residuals.held, strict=True))
            summand = torch.inference_mode()(partial(call, target))
            for products in in_order(self._threads, held, summand, target.places()):
                yield target, products

    def _attend_and_fit_first(self) -> None:
        """Fits the MLP's first matrices from the new input to their outputs in the targets."""
        new, hidden = self._new.held[0], self._expert.config.hidden_size
        fit = _LeastSquares(hidden, hidden, len(self._targets), self._device)
        for target, products in self._products(_Target.attend):
            fit.add(products, target.number)
        for name, module in new.mlp.named_children():
            if isinstance(module, nn.Linear) and name != new.last:
                modules = [target.residuals.held[0].mlp.get_submodule(name) for target in self._targets]
                module.weight.copy_(fit.solve(module.weight, [aim.weight.T for aim in modules]))

    def _fit_last(self) -> None:
        """Fits the last matrix to the difference of the targets' residuals and the present ones."""
        new = self._new.held[0]
        module = new.mlp.get_submodule(new.last)
        fit = _LeastSquares(module.in_features, module.out_features, len(self._targets), self._device)
        for target, products in self._products(_Target.miss):
            fit.add(products, target.number)
            self._done(0 if target.number else int(products.tokens))
        module.weight.copy_(fit.solve(module.weight))
