"""MergeME without fine-tuning: each input's experts by heuristics (section 3.1.3, appendix C, table 3).

The merged model has the experts' averaged embedding, norms and head, as BTX. "Separate attention" keeps the attention
of every expert too; in each layer the chosen experts' attention outputs are summed by the input's weights, and then
their MLPs' outputs.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from moerge.errors import MoergeError
from moerge.models.families.family import mlp_layers, module_of
from moerge.models.families.registry import family_of
from moerge.scoring.perplexity import Rows, logits, losses_by
from moerge_lab.recipes.base import SEED, Fleet, Model, Options, Recipe, whole
from moerge_lab.recipes.dense import merged_model
from moerge_lab.recipes.likelihoods import Dense, documents, experts, in_groups, likelihoods, with_seed
from moerge_lab.recipes.models import FromLogits, active_parameters, load

Scores = Callable[[Rows], Tensor]
"""Similarity of each row to each expert: [B, D]."""


def top_softmax(scores: Tensor, k: int) -> Tensor:
    """[B, D]: the softmax over each row's k largest scores [B, D]; 0 elsewhere."""
    values, chosen = scores.topk(min(k, scores.shape[1]), dim=1)
    return torch.zeros_like(scores).scatter(1, chosen, values.softmax(dim=1))


def confidence(models: Sequence[Dense]) -> Scores:
    """1 / PPL of each row under each expert: the geometric mean of its tokens' probabilities except the first."""

    def scores(rows: Rows) -> Tensor:
        tokens = (torch.tensor(rows.lengths) - 1).clamp_min(1)
        return (likelihoods(models, documents(rows)) / tokens[:, None]).exp()

    return scores


def alignment(base: PreTrainedModel, models: Sequence[PreTrainedModel]) -> Scores:
    """The cosine of the base model's gradient on each row with every task vector, base - expert.

    A step against the gradient leads towards an expert, so the gradient points away from it, like base - expert.
    """
    parameters = dict(base.named_parameters())
    experts = [dict(model.named_parameters(remove_duplicate=False)) for model in models]
    for name, parameter in parameters.items():
        if wrong := [list(expert[name].shape) for expert in experts if expert[name].shape != parameter.shape]:
            problem = f"the base model's shape is {list(parameter.shape)}, an expert's {wrong[0]}"
            raise MoergeError(problem, where=name, todo="name the experts' seed model")
    vectors = [[(parameter - expert[name]).detach() for name, parameter in parameters.items()] for expert in experts]
    sizes = torch.tensor([_dot(vector, vector) for vector in vectors]).sqrt()

    def scores(rows: Rows) -> Tensor:
        result = torch.zeros(len(rows.lengths), len(vectors), dtype=torch.float64)
        for row, text in enumerate(documents(rows)):
            with torch.inference_mode(False), torch.enable_grad():
                alone = Rows(torch.tensor([text]), [len(text)], rows.domain)
                loss = losses_by(partial(logits, base))(alone).sum()
                gradient = torch.autograd.grad(loss, list(parameters.values()))
            dots = torch.tensor([_dot(gradient, vector) for vector in vectors], dtype=torch.float64)
            result[row] = dots / (sizes * _dot(gradient, gradient) ** 0.5).clamp_min(1e-300)
        return result

    return scores


def _dot(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    return sum(float((a * b).sum(dtype=torch.float64)) for a, b in zip(one, other, strict=True))


def mixed_modules(config: PretrainedConfig, *, separate: bool) -> list[list[str]]:
    """The names of each layer's MLP; with `separate`, also of its attention, or of what it has instead."""
    family = family_of(config)
    mlps = [family.mlp_module.format(layer=layer) for layer in mlp_layers(config)]
    return [mlps, *([[module_of(item.inputs[0]) for item in family.attentions(config)]] if separate else [])]


class Gate:
    """The experts of one forward pass, and their weights [B, k]."""

    chosen: Sequence[int]
    weights: Tensor


class Mixed(nn.Module):
    """The weighted sum of the chosen experts' outputs, for one layer's MLPs or attentions."""

    def __init__(self, experts: Sequence[nn.Module], gate: Gate) -> None:
        super().__init__()
        self.experts, self.gate = nn.ModuleList(experts), gate

    def forward(self, *args: object, **kwargs: object) -> Tensor | tuple[Tensor, None]:
        outputs = [self.experts[expert](*args, **kwargs) for expert in self.gate.chosen]
        pairs = isinstance(outputs[0], tuple)  # attention also returns its weights
        states = torch.stack([output[0] if pairs else output for output in outputs])  # [k, B, T, H]
        mixed = torch.einsum("kbth,bk->bth", states, self.gate.weights.to(states))
        return (mixed, None) if pairs else mixed


class Upcycled(FromLogits):
    """The averaged model with every expert's MLPs, and attention, mixed by the same weights in all layers and places.

    Args:
        body: the averaged model; its modules are replaced.
        routing: parameters that a token is multiplied by for the scores.
        k: experts per row.
        separate: whether every expert keeps its own attention.
    """

    def __init__(
        self,
        body: PreTrainedModel,
        models: Sequence[PreTrainedModel],
        scores: Scores,
        routing: float,
        k: int,
        *,
        separate: bool,
    ) -> None:
        self._body, self._scores, self._k, self._gate = body, scores, k, Gate()
        further = min(k, len(models)) - 1  # experts, besides the body's one
        self.active_parameters = active_parameters(body) + routing
        for names in mixed_modules(body.config, separate=separate):
            one = nn.ModuleList(map(body.get_submodule, names))
            self.active_parameters += further * sum(parameter.numel() for parameter in one.parameters())
            for name in names:
                mixed = Mixed([model.get_submodule(name) for model in models], self._gate)
                body.set_submodule(name, mixed)

    @torch.inference_mode()
    def logits(self, rows: Rows) -> Tensor:
        """[B, T, V] float32; rows with the same experts are computed together."""
        weights = top_softmax(self._scores(rows), self._k)
        sets, which = (weights > 0).unique(dim=0, return_inverse=True)
        groups = [(which == number).nonzero()[:, 0] for number in range(len(sets))]
        return in_groups(rows, ((those, partial(self._mixed, weights[those])) for those in groups))

    def _mixed(self, weights: Tensor, rows: Rows) -> Tensor:
        self._gate.chosen = weights[0].nonzero()[:, 0].tolist()
        self._gate.weights = weights[:, self._gate.chosen]
        return logits(self._body, rows)


def _by_perplexity(name: str, separate: bool, fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
    members = with_seed(fleet, options)
    models, body, k = experts(members), merged_model(members, "average", {}), whole(options, "k", 1)
    routing = sum(model.active_parameters for model in models)
    yield name, Upcycled(body, [model.model for model in models], confidence(models), routing, k, separate=separate)


def _by_task_vector(name: str, separate: bool, fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
    models, body = [expert.model for expert in experts(fleet)], merged_model(fleet, "average", {})
    base = load(fleet.seed_model, fleet.device)
    routing = 3 * active_parameters(base)  # a backward pass costs two forward ones
    yield name, Upcycled(body, models, alignment(base, models), routing, whole(options, "k", 1), separate=separate)


def _recipe(name: str, *, task_vector: bool, separate: bool) -> Recipe:
    heuristic = "appendix C: task vector routing" if task_vector else "section 3.1.3: PPL routing"
    attention = "separate attention" if separate else "merged attention, by averaging"
    return Recipe(
        name,
        f"MergeME {heuristic}, {attention}",
        partial(_by_task_vector if task_vector else _by_perplexity, name, separate),
        options={"k": 2} if task_vector else {"k": 2, SEED: 0},
        uses_text=False,
        needs_base=task_vector,
        reads_ahead=True,
    )


RECIPES = (
    _recipe("mergeme-ppl", task_vector=False, separate=False),
    _recipe("mergeme-ppl-separate", task_vector=False, separate=True),
    _recipe("mergeme-task-vector", task_vector=True, separate=False),
    _recipe("mergeme-task-vector-separate", task_vector=True, separate=True),
)
