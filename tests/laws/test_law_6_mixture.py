"""Law 6: a version is a dense model whose MLPs are a mixture that routes on its own input, however it is used."""

from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from moerge.models.bounds import feature_gains
from moerge.models.dense_files import DenseBody
from moerge.models.families.family import mlp_layers
from moerge.models.families.hosts import HOSTS
from moerge.models.families.registry import FAMILIES
from moerge.models.reader import Checkpoint
from moerge.scoring.routers import forced
from support.models import GEMMA4_SMALL, allowed, expert
from support.versions import ROWS, behind, loaded, logits, published

PARTIAL = {
    "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0, 1.5], "long_factor": [2.0, 3.0],
    "original_max_position_embeddings": 64,
}  # fmt: skip
MEMBERS: dict[str, tuple[str, dict[str, Any]]] = {
    **{family: (family, {}) for family in FAMILIES},
    "partial phi3": (
        "phi3",
        {"partial_rotary_factor": 0.5, "rope_parameters": PARTIAL, "original_max_position_embeddings": 64},
    ),
    "small gemma4": ("gemma4_text", GEMMA4_SMALL),
    "biased llama": ("llama", {"attention_bias": True}),
    "qwen3 with windows": ("qwen3", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
}
PROMPTS = [ROWS[0][:20], ROWS[1][:13]]
NEW, PAD = 6, 258
RANGE = 0.1
"""Of weights, so that logits depend on the scores of attention."""


class Mixture(nn.Module):
    """MLPs of experts, and a router [D, H] of the MLPs' input; softmax, then the largest weights, renormalised."""

    def __init__(self, experts: list[nn.Module], router: Tensor, top_k: int) -> None:
        super().__init__()
        self.experts, self.router, self.top_k = nn.ModuleList(experts), nn.Parameter(router), top_k

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = (x @ self.router.T).softmax(dim=-1).topk(self.top_k, dim=-1)
        shares = torch.zeros_like(x @ self.router.T).scatter(-1, chosen, weights / weights.sum(dim=-1, keepdim=True))
        outputs = torch.stack([mlp(x) for mlp in self.experts], dim=-1)
        return (outputs * shares[..., None, :]).sum(dim=-1)


@dataclass(frozen=True)
class Member:
    folder: Path
    version: PreTrainedModel
    mixture: PreTrainedModel
    dense: PreTrainedModel  # of the first expert


@pytest.fixture(scope="module", params=MEMBERS)
def member(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Member:
    family, settings = MEMBERS[request.param]
    home = tmp_path_factory.mktemp(family)
    experts = [expert(home / str(seed), seed, family, initializer_range=RANGE, **settings) for seed in (1, 2, 3)]
    top_k = allowed(family)[-1]
    folder = published(experts, home, top_k)
    body = home / "body" / "body.safetensors"
    mixture, *models = (behind(own, body, folder) for own in (experts[0], *experts))
    version, weights = loaded(folder), Checkpoint(folder)
    host, gains = HOSTS[version.config.model_type], feature_gains(DenseBody(body, mixture.config))
    for place, layer in enumerate(mlp_layers(version.config)):
        name = FAMILIES[family].mlp_module.format(layer=layer)
        router = weights.tensor(host.router.format(layer=layer))
        router = router / host.router_of(torch.ones_like(router), gains[place])
        mlps = [model.get_submodule(name) for model in models]
        mixture.set_submodule(name, Mixture(mlps, router, top_k))
    return Member(folder, version, mixture, models[0])


def continued(model: Any, prompts: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Greedy tokens [n, NEW] after prompts, padded on the left, through the cache; and their logits [n, NEW, V]."""
    longest = max(map(len, prompts))
    made = model.generate(
        torch.tensor([[PAD] * (longest - len(row)) + row for row in prompts]),
        attention_mask=torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in prompts]),
        max_new_tokens=NEW,
        min_new_tokens=NEW,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return made.sequences[:, longest:], torch.stack(made.logits, dim=1)


def test_law_6_different_experts_give_logits_of_a_dense_mixture(member: Member) -> None:
    torch.testing.assert_close(logits(member.version), logits(member.mixture), atol=1e-4, rtol=0)


def test_law_6_cache_and_left_padding_keep_the_logits(member: Member) -> None:
    tokens, scores = continued(member.version, PROMPTS)
    for row, prompt in enumerate(PROMPTS):
        text = torch.tensor([[*prompt, *tokens[row, :-1].tolist()]])
        with torch.inference_mode():
            expected = member.mixture(text, use_cache=False).logits[0, -NEW:]
        torch.testing.assert_close(scores[row], expected, atol=1e-4, rtol=0)


def test_law_6_bfloat16_is_as_far_from_float32_as_the_dense_model(member: Member) -> None:
    with forced(member.version, 0):
        exact = logits(member.version).log_softmax(-1)
    rounded = AutoModelForCausalLM.from_pretrained(member.folder, dtype=torch.bfloat16)
    with forced(rounded, 0):
        ours = (logits(rounded).float().log_softmax(-1) - exact).abs().mean()
    dense = (logits(deepcopy(member.dense).bfloat16()).float().log_softmax(-1) - exact).abs().mean()
    assert ours <= 1.2 * dense
