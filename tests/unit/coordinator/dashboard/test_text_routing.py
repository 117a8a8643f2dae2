"""The experts of a text's tokens."""

import math

import pytest

from moerge_coordinator.dashboard.text_routing import Run, routing
from moerge_proto.routing import RoutedText

# layer 0 sends every token to law; layer 1 sends c to art, layer 2 b and c
ROUTED = RoutedText(
    version=1,
    domains=["law", "art"],
    top_k=1,
    context=8,
    tokens=["a", "b", "c"],
    experts=[[[0], [0], [0]], [[0], [0], [1]], [[0], [1], [1]]],
    scores=[[[0.0, 0.0]] * 3, [[0.0, 0.0]] * 3, [[math.log(3), 0.0]] * 3],
)


def test_successive_tokens_of_one_expert_are_one_run() -> None:
    shown = routing(ROUTED, "2")
    assert shown["runs"] == [Run("a", 0), Run("bc", 1)]
    assert shown["shares"] == pytest.approx([1 / 3, 2 / 3])


@pytest.mark.parametrize("layer", ["all", "3", "-1"])
def test_over_all_layers_a_token_goes_to_the_expert_of_most(layer: str) -> None:
    assert routing(ROUTED, layer)["runs"] == [Run("ab", 0), Run("c", 1)]


def test_the_curve_is_the_softmax_averaged_over_the_layers() -> None:
    assert routing(ROUTED, "2")["curve"].lines["law"] == pytest.approx([0.75] * 3)
    assert routing(ROUTED, "all")["curve"].lines["law"] == pytest.approx([1.75 / 3] * 3)
