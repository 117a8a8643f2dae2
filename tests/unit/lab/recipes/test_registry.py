"""Recipes as users write them."""

import pytest

from moerge.errors import MoergeError
from moerge_lab.recipes.registry import RECIPES, parse


def test_a_spec_names_a_recipe_and_some_of_its_options() -> None:
    recipe, options, label = parse("dume:k=2,lambda=0.01")
    assert recipe is RECIPES["dume"]
    assert options == {"k": 2, "lambda": 0.01, "tokens": 0}
    assert label == "dume:k=2"  # what differs from the recipe's own
    assert parse("dume")[2] == "dume"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("dumme", "no recipe 'dumme'.*did you mean dume\\?.*experts, averaging"),
        ("dume:top_k=2", "no option 'top_k' of dume.*use one of: k, lambda, tokens"),
        ("oracle:k=2", "no option 'k' of oracle.*it has no options"),
        ("dume:k=two", "expected OPTION=NUMBER, found 'k=two'"),
        ("dume:lambda=inf", "expected OPTION=NUMBER, found 'lambda=inf'"),
        ("dume:k", "expected OPTION=NUMBER, found 'k'"),
    ],
)
def test_what_doesn_t_exist_is_named_with_what_does(spec: str, said: str) -> None:
    with pytest.raises(MoergeError, match=f"(?s){said}") as caught:
        parse(spec)
    assert caught.value.where == f"`recipe` {spec}"


def test_a_label_has_the_options_that_differ_from_defaults() -> None:
    assert parse("btx:start=recommended,routing=soft")[2] == "btx:start=recommended,routing=soft"
    assert parse("btx:routing=top2")[2] == "btx"


def test_every_recipe_says_where_it_is_from() -> None:
    assert all(recipe.source for recipe in RECIPES.values())
