"""All dense families and hosts, by model_type."""

from collections.abc import Collection

from transformers import PretrainedConfig

from moerge.errors import IncompatibleExpertError
from moerge.models.families.family import Ends, Family, Host
from moerge.models.families.gemma import GEMMA, GEMMA3, GEMMA4, GEMMA4_UNIFIED
from moerge.models.families.glm import GLM, HELIUM
from moerge.models.families.granite import GRANITE
from moerge.models.families.hosts import HOSTS
from moerge.models.families.hybrid import GRANITE_HYBRID, LFM2, QWEN3_5
from moerge.models.families.llama import INTERNLM3, IQUESTCODER, LLAMA, MISTRAL, PHI3
from moerge.models.families.ministral import MINISTRAL3
from moerge.models.families.nemotron import NEMOTRON_H
from moerge.models.families.olmo import OLMO2
from moerge.models.families.qwen import QWEN2, QWEN3, SEED_OSS
from moerge.models.families.refused import REFUSED
from moerge.models.families.smollm import CWM, SMOLLM3

_LLAMAS = (LLAMA, INTERNLM3, IQUESTCODER, MISTRAL, MINISTRAL3, HELIUM, PHI3, SMOLLM3, CWM)
_OTHERS = (QWEN2, QWEN3, SEED_OSS, GLM, OLMO2, QWEN3_5, LFM2, NEMOTRON_H)
_FUSED = (GRANITE, GRANITE_HYBRID, GEMMA, GEMMA3, GEMMA4, GEMMA4_UNIFIED)
FAMILIES = {family.model_type: family for family in (*_LLAMAS, *_OTHERS, *_FUSED)}
_EXPERTS = {"num_experts_per_tok", "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"}


def require_family(model_type: str, fields: Collection[str] = ()) -> Family:
    """The family of a model_type, for a config with these fields; IncompatibleExpertError if there is none."""
    family = FAMILIES.get(model_type)
    if family is None:
        why = REFUSED.get(model_type)
        if why is None and ("moe" in model_type or not _EXPERTS.isdisjoint(fields)):
            todo = "name the dense model of this domain; instead of a version, name the experts that it was merged from"
            problem = f"model_type {model_type!r} is a mixture of experts, and an expert must be dense"
            raise IncompatibleExpertError(problem, where="config.json: model_type", todo=todo)
        if not model_type:
            todo = "name a folder written by save_pretrained, whose config.json says the architecture"
            raise IncompatibleExpertError("there is no model_type", where="config.json: model_type", todo=todo)
        reason = f"is not supported: {why}" if why else "has no stock MoE class in moerge"
        problem = f"model_type {model_type!r} {reason}"
        todo = f"use one of the supported families: {', '.join(sorted(FAMILIES))}"
        if why is None:
            todo += "; or open an issue with the model's hub id, its config.json, and its tensors' names and shapes"
        raise IncompatibleExpertError(problem, where="config.json: model_type", todo=todo)
    return family


def family_of(config: PretrainedConfig) -> Family:
    """The family of a dense config; IncompatibleExpertError if no stock MoE class is exactly equivalent."""
    return _fitting(require_family(config.model_type, config.to_dict()), config)


def _fitting(family: Family, config: PretrainedConfig) -> Family:
    try:
        for demand in family.demands:
            demand.require(config)
    except IncompatibleExpertError:
        if family.otherwise is None:
            raise
        return _fitting(family.otherwise, config)
    return family


def host_of(config: PretrainedConfig) -> Host:
    """The host that published `config`; IncompatibleExpertError if there is none."""
    host = HOSTS.get(config.model_type)
    if host is None or getattr(config, host.count, None) is None:
        problem = f"moerge publishes no model_type {config.model_type!r}"
        raise IncompatibleExpertError(problem, where="config.json: model_type")
    return host


def ends_of(config: PretrainedConfig) -> Ends:
    """The computations of a dense or published model before its first layer and after its head."""
    return (HOSTS.get(config.model_type) or require_family(config.model_type)).ends
