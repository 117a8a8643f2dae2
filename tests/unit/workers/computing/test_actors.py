"""Ray actors that die again and again."""

from moerge_workers.computing.actors import _Actor


def test_a_slot_that_computes_only_known_layers_and_then_dies_has_died_in_a_row() -> None:
    """It dies in the layer that needs most memory, and its replacements begin before it."""
    replacement = _Actor(None, 0, 3)
    replacement.passed(summed=False)
    assert (replacement.deaths, replacement.layer) == (3, 1)
    replacement.passed(summed=True)
    assert (replacement.deaths, replacement.layer) == (0, 2)
