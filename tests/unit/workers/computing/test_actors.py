"""Ray actors that die again and again."""

from moerge_workers.computing.actors import _Actor


def test_deaths_are_reset_only_after_a_newly_summed_layer() -> None:
    """It dies in the layer that needs most memory, and its replacements begin before it."""
    replacement = _Actor(None, 0, 3)
    replacement.passed(summed=False)
    assert (replacement.deaths, replacement.layer) == (3, 1)
    replacement.passed(summed=True)
    assert (replacement.deaths, replacement.layer) == (0, 2)
