"""Least squares on the owners' grams (Jin et al., 2023)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moerge.trunk.methods.method import Method, MethodInputs

if TYPE_CHECKING:
    from moerge.models.writer import TensorPlan


def plan(inputs: MethodInputs, *, for_fitted_mlps: bool = False) -> list[TensorPlan]:
    from moerge.trunk.regmean import ModuleGrams, solved_plan

    family, config = inputs.family, inputs.config
    pairs = zip(inputs.experts, inputs.statistics, strict=True)
    owners = [ModuleGrams(expert, file, family, config) for expert, file in pairs]
    return solved_plan(owners, family, config, for_fitted_mlps=for_fitted_mlps)


METHOD = Method(
    "regmean",
    "least squares on owners' grams",
    plan,
    solved=True,
    revision=2,
)
