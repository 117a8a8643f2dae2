"""No mutation is stale: each replaces a text that is there once, and names test files that are there."""

import pytest

from mutations.catalogue import MUTATIONS, Mutation
from mutations.play import place


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_finds_its_text_and_its_tests(mutation: Mutation) -> None:
    assert mutation.old != mutation.new
    place(mutation)


def test_names_are_used_once() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)
