"""Recipes of newer work with further rounds of the owners: RegMean++, and HARC's second-order fit."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from moerge.files import atomic_file
from moerge.merging.local import LocalTrunk
from moerge.models.batches import Batch, batches
from moerge.models.bounds import feature_exponents
from moerge.models.config import read_config
from moerge.models.dense import dense_model, domain_model, place, trunk_names
from moerge.models.families import EMBEDDING, HEAD, family_of
from moerge.models.reader import Checkpoint
from moerge.models.writer import TensorPlan, write_safetensors
from moerge.routers.ridge import Ridge
from moerge.statistics.features import visit_features, visit_trunk_inputs
from moerge.trunk.pieces import merge_plan
from moerge.trunk.regmean import regmean
from moerge_lab.recipes.base import Fleet, Model, Options, Recipe, Shared, number
from moerge_lab.recipes.models import Routed
from moerge_lab.recipes.own import OPTIONS, PARTS
from moerge_lab.recipes.published import COUNTS, RIDGE, first_tokens, published_recipe, ridge, trunk_of, version
from moerge_proto.statistics_file import StatisticsFile, StatisticsSettings


@dataclass
class _ForwardGrams:
    """The grams of one owner for `regmean`, filled layer by layer."""

    expert: Checkpoint
    file: StatisticsFile
    found: dict[str, Tensor] = field(default_factory=dict)  # weight -> [in, in] float64

    def __contains__(self, weight: str) -> bool:
        return weight in self.found

    def gram(self, weight: str) -> Tensor:
        square = self.found[weight]
        return square / square.diagonal().mean().clamp_min(1e-300)


def _cut(fleet: Fleet, slot: int, options: Options) -> list[Batch]:
    documents = first_tokens(fleet.domains[slot].statistics, options)
    return list(batches(documents, StatisticsSettings().batch_tokens))


def _grams(model: PreTrainedModel, cut: Sequence[Batch], layer: int) -> dict[int, Tensor]:
    """Grams [in, in] float64 of the inputs of a layer's attention, by their place in a trunk contribution.

    With the last layer comes the input of the head.
    """
    found: dict[int, Tensor] = {}

    def visit(place: int, x: Tensor) -> None:
        square = x.double().T @ x.double()
        found[place] = found[place] + square if place in found else square

    for batch in cut:
        visit_trunk_inputs(model, family_of(model.config), batch, visit, range(layer, layer + 1))
    return found


def plus_trunk(fleet: Fleet, options: Options) -> LocalTrunk:
    """The RegMean++ trunk (Nguyen et al., 2025): each layer from grams under the merged layers below it.

    An owner's model is the merged trunk below a layer, and the expert's own modules from there on; all MLPs are its
    own, as in a version. So every layer needs a round of all owners; here a pass up to the layer.
    """
    alone = replace(fleet, shared=Shared())  # because the trunk's file is replaced, and its contributions are read
    made = trunk_of(alone, "regmean", options)  # for token counts and properties
    config = read_config(fleet.domains[0].expert)
    family, layers = family_of(config), int(config.num_hidden_layers)
    with ExitStack() as stack:
        owners = []
        for slot, domain in enumerate(fleet.domains):
            file = stack.enter_context(StatisticsFile(fleet.work / f"trunk-contribution-{slot}"))
            owners.append(_ForwardGrams(Checkpoint(domain.expert), file))
        experts, rule = [owner.expert for owner in owners], regmean(owners)
        plans = {plan.name: plan for plan in merge_plan(experts, family, layers, rule, own_head=True)}
        state = {EMBEDDING: plans[EMBEDDING].compute()}
        for layer in range(layers):
            for slot, owner in enumerate(owners):
                model = _behind(state, fleet.domains[slot].expert)
                place(model, fleet.device)
                found = _grams(model, _cut(fleet, slot, options), layer)
                for module in family.attention.inputs:
                    owner.found[module.format(layer=layer) + ".weight"] = found[2 * layer].cpu()
                owner.found[family.attention.output.format(layer=layer) + ".weight"] = found[2 * layer + 1].cpu()
            state |= _merged(plans, f"model.layers.{layer}.")
        for slot, owner in enumerate(owners):
            model = _behind(state, fleet.domains[slot].expert)
            place(model, fleet.device)
            owner.found[HEAD] = _grams(model, _cut(fleet, slot, options), layers - 1)[2 * layers].cpu()
        state |= {name: plan.compute() for name, plan in plans.items() if name not in state}
    made.path.unlink()
    with atomic_file(made.path) as out:
        sha256 = write_safetensors(out, [_planned(name, tensor) for name, tensor in sorted(state.items())])
    exponents = feature_exponents(Checkpoint(made.path), family, config)
    return replace(made, sha256=sha256, digest=sha256, method="regmean++", exponents=exponents)


def _behind(state: dict[str, Tensor], expert: Path) -> PreTrainedModel:
    """The expert with these tensors of a trunk instead of its own, in float32."""
    config, own = read_config(expert), Checkpoint(expert)
    family, layers = family_of(config), config.num_hidden_layers
    names = [*trunk_names(own, family, layers), *family.dense_mlp_names(layers)]
    return dense_model(config, {name: state.get(name, own.tensor(name)).float() for name in names}, torch.float32)


def _merged(plans: dict[str, TensorPlan], prefix: str) -> dict[str, Tensor]:
    return {name: plan.compute() for name, plan in plans.items() if name.startswith(prefix)}


def _planned(name: str, tensor: Tensor) -> TensorPlan:
    return TensorPlan(name, tensor.dtype, tuple(tensor.shape), lambda: tensor)


def second_order(router: Tensor, features: Sequence[Tensor], ridge: float) -> Tensor:
    """[D, H] float64: the router after one Newton step of the domains' cross-entropy, in closed form.

    With p = softmax(router x) and y the domain of x, it minimises the second-order expansion of the mean of
    -log p_y around the router, sum E[(p - y)^T V x] + E[(V x)^T (diag p - p p^T) V x] / 2, with equal weights of the
    domains, shrunk by `ridge` times the mean diagonal of E[x x^T]. HARC (Huang et al., 2026) minimises the same
    Hessian's form towards the routers of several MoE models; dense experts have no routers, so domains replace them.

    Args:
        router: [D, H] float64.
        features: [n, H] of each domain.
    """
    count, hidden = router.shape
    hessian = torch.zeros(count, hidden, count, hidden, dtype=torch.float64)
    gradient, unit = torch.zeros_like(router), 0.0
    for domain, rows in enumerate(features):
        x = rows.double()
        p = (x @ router.T).softmax(dim=1)
        error = p.clone()
        error[:, domain] -= 1
        gradient += error.T @ x / (count * len(x))
        unit += float(x.square().mean()) / count
        for i in range(count):
            for j in range(count):
                weight = p[:, i] * (int(i == j) - p[:, j]) / (count * len(x))
                hessian[i, :, j] += (weight[:, None] * x).T @ x
    system = hessian.reshape(count * hidden, count * hidden)
    factor = Ridge.of((system + system.T) / 2, ridge * unit).factor
    step = torch.cholesky_solve(gradient.reshape(-1, 1), factor).reshape(count, hidden)
    return router - step


def _features(fleet: Fleet, slot: int, trunk: LocalTrunk, layer: int, options: Options) -> Tensor:
    """[n, H]: the inputs of a layer's MLP under the trunk with the domain's own MLPs."""
    model, _ = domain_model(fleet.domains[slot].expert, trunk.path)
    place(model, fleet.device)
    seen: list[Tensor] = []
    for batch in _cut(fleet, slot, options):
        visit_features(model, batch, lambda _, x: seen.append(x.cpu()), range(layer, layer + 1))
    return torch.cat(seen)


def _harc(fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
    """moerge's trunk and routers, and one more round for the second-order fit."""
    given = {**OPTIONS, **options}
    trunk = PARTS.trunk(fleet, given)
    slots = range(len(fleet.domains))
    members = [PARTS.contribute(fleet, slot, trunk, given) for slot in slots]
    routers = []
    for layer, router in enumerate(PARTS.solve(members, trunk, given)):
        features = [_features(fleet, slot, trunk, layer, given) for slot in slots]
        routers.append(second_order(router, features, number(options, "ridge")))
    experts = [member.expert for member in members]
    yield "harc", Routed.of(version(experts, trunk, routers, given, fleet.work / "version"), fleet.device)


_PLUS = published_recipe(
    "regmean-plus",
    "trunk by RegMean++ (Nguyen et al. 2025), a round per layer; DUME's routers",
    replace(ridge("regmean"), trunk=plus_trunk),
    {**RIDGE, **COUNTS},
)
RECIPES = (
    replace(_PLUS, asked_only=True),
    Recipe(
        "harc",
        "moerge's trunk; routers by HARC's softmax Hessian (Huang et al. 2026), towards the domains, one more round",
        _harc,
        {"k": 1, "tokens": 0, **COUNTS, "ridge": 0.001},
        asked_only=True,
    ),
)
