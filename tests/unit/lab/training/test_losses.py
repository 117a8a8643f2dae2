"""Routings of a training follow their formulas, forward and backward."""

import pytest
import torch
from torch import Generator, Tensor
from torch.nn.functional import one_hot, silu
from transformers import PreTrainedModel

from moerge_lab.recipes.models import load
from moerge_lab.training.losses import ROUTINGS, RoutedLoss, Routing, choose, language_loss
from support.models import expert
from support.versions import published


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedModel:
    """A version of three experts, of which a block is a case to compute by hand."""
    folder = tmp_path_factory.mktemp("version")
    return load(published([expert(folder / f"e{seed}", seed) for seed in range(3)], folder))


def by_hand(routing: Routing, logits: Tensor, outputs: Tensor) -> Tensor:
    """The block's output [n, H] from logits [n, D] and every expert's output [n, D, H]; differentiable in logits."""
    p, count = logits.softmax(1), logits.shape[1]
    if routing == "gumbel":
        uniform = torch.rand(logits.shape, generator=Generator().manual_seed(5))
        p = (logits - torch.log(-torch.log(uniform))).softmax(1)
    first = one_hot(p.argmax(1), count)
    two = one_hot(logits.topk(2, dim=1).indices, count).sum(1)
    weights = {
        "top1": first * p / (first * p).sum(1, keepdim=True).detach(),  # its gradient is overwritten by the test
        "top2": two * p / (two * p).sum(1, keepdim=True),
        "soft": p,
        "straight": first + p - p.detach(),
        "gumbel": first + p - p.detach(),
        "eq4": first * p,
    }[routing]
    return torch.einsum("nd,ndh->nh", weights, outputs)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_block_output_and_router_gradient_match_the_formula(model: PreTrainedModel, routing: Routing) -> None:
    block = model.get_submodule("model.layers.1.mlp")
    router, experts = block.get_submodule("gate").get_parameter("weight"), block.get_submodule("experts")
    x = torch.randn(11, router.shape[1], generator=Generator().manual_seed(1))
    outputs = []
    for slot in range(3):
        gate, up = (x @ experts.get_parameter("gate_up_proj")[slot].T).chunk(2, dim=1)
        outputs.append((silu(gate) * up) @ experts.get_parameter("down_proj")[slot].T)
    weight = router.detach().clone().requires_grad_()
    expected = by_hand(routing, x @ weight.T, torch.stack(outputs, dim=1).detach())
    expected.square().sum().backward()
    loss = RoutedLoss(routing)
    loss._noise = Generator().manual_seed(5)
    with loss.routed(model):
        result = block(x[None])[0]
        [gradient] = torch.autograd.grad(result.square().sum(), [router])
    torch.testing.assert_close(result, expected)
    assert weight.grad is not None
    if routing == "top1":
        assert not gradient.any(), "a weight that is always 1 has no gradient"
    else:
        torch.testing.assert_close(gradient, weight.grad, rtol=1e-4, atol=1e-7)
        assert gradient.abs().max() > 0
    assert not torch.equal(block(x[None])[0], result) or routing in ("top1", "straight"), "the routing ends"


def test_gumbel_draws_each_expert_with_its_probability() -> None:
    logits = torch.tensor([0.5, 0.2, 0.3]).log().expand(20_000, 3)
    weights, experts = choose("gumbel", logits, Generator().manual_seed(0))
    assert experts[0].tolist() == [0, 1, 2]
    torch.testing.assert_close(weights.mean(0), torch.tensor([0.5, 0.2, 0.3]), atol=0.02, rtol=0)


def test_the_balance_is_least_for_experts_alike_in_use(model: PreTrainedModel) -> None:
    ids, noise = torch.arange(3, 23)[None], Generator()
    routers = [layer.mlp.gate.weight for layer in model.model.layers]
    before = [router.detach().clone() for router in routers]
    try:
        result = []
        for column in (0.0, 1e4):  # all probabilities alike; one expert takes every token
            for router in routers:
                router.data.zero_()
                router.data[1] = column * torch.ones_like(router[1])
            loss = RoutedLoss("soft", balance=0.5)
            with torch.no_grad(), loss.routed(model):
                result.append(float(loss(model, ids, noise) - language_loss(model, ids, noise)))
        assert result[0] == pytest.approx(0.5, abs=1e-5), "D sum of 1 / D times 1 / D"
        assert result[1] > result[0]
    finally:
        for router, old in zip(routers, before, strict=True):
            router.data.copy_(old)
