"""One value for the recommended options: REST, the command line, the dashboard and the demo have the same defaults."""

from typing import Any

import pytest
from typer.main import get_group

from moerge.cli import versions
from moerge.errors import MoergeError
from moerge.merging.merge import MergeSettings
from moerge.merging.recipe import Recipe
from moerge_coordinator.dashboard.actions.versions import asked_version, solve_form
from moerge_lab.recipes.registry import RECIPES
from moerge_proto.recipes import FEDERATED, PAPER, RECOMMENDED, VERSION_RECIPES, SolveOptions
from moerge_proto.versions import NewVersion
from moerge_workers.settings import Settings

PLACE = ("coordinator", "secret")


def received(new: NewVersion) -> SolveOptions:
    """The options as the coordinator reads them."""
    return NewVersion.model_validate_json(new.model_dump_json()).options


def given(*arguments: str) -> dict[str, Any]:
    """The parameters of `moerge version solve` that are given, or have a default."""
    solve: Any = get_group(versions.app).commands["solve"]
    result = solve.make_context("solve", ["--coordinator", "https://x", "--token", "x", *arguments]).params
    return {name: value for name, value in result.items() if value not in (None, ()) and name not in PLACE}


def test_recommended_and_paper_recipes_have_documented_values() -> None:
    """moerge_lab/figures has the figures of these values; others need new figures."""
    assert RECOMMENDED.model_dump() == {
        "body": "regmean",
        "head": "regmean",
        "fit": False,
        "solve": {
            "ridge_lambda": 0.001,
            "lambda_scale": "relative",
            "domain_weights": "balanced",
            "routers": "discriminant",
            "top_k": 1,
            "temperature": 1.0,
        },
        "before": None,
    }
    assert FEDERATED.model_dump() == RECOMMENDED.model_dump() | {"body": "seed", "fit": True}
    paper = {"ridge_lambda": 0.01, "lambda_scale": "absolute", "domain_weights": {}, "routers": "ridge"}
    assert (PAPER.body, PAPER.head, PAPER.fit, PAPER.before) == ("average", "average", False, None)
    assert Settings.model_fields["statistics"].default.before == FEDERATED.before
    assert PAPER.solve.model_dump() == {**paper, "top_k": 1, "temperature": 1.0}


def test_merges_and_recipes_withhold_the_same_counts() -> None:
    recipes = [
        RECIPES[name].options["rare_below"]
        for name in ("regmean", "regmean-oracle", "recommended", "recommended-oracle")
    ]
    assert {*recipes, MergeSettings().rare_below} == {10}


def test_rest_completes_options_with_the_recommended_ones() -> None:
    assert NewVersion().options == RECOMMENDED.solve
    assert NewVersion.model_validate_json("{}").options == RECOMMENDED.solve
    assert received(NewVersion()) == RECOMMENDED.solve
    some = NewVersion.model_validate_json('{"options": {"top_k": 2}}')
    assert some.options == RECOMMENDED.solve.model_copy(update={"top_k": 2})
    assert received(NewVersion(options=PAPER.solve)) == PAPER.solve
    assert received(NewVersion(options=SolveOptions(top_k=2))) == SolveOptions(top_k=2)


def test_version_solve_sends_what_is_given_and_nothing_else() -> None:
    assert given() == {"wait_": False, "partial": False, "accept_loss": False}
    new = versions.new_version(Recipe())
    assert received(new) == RECOMMENDED.solve
    assert new.model_dump(mode="json")["options"] == {}
    new = versions.new_version(Recipe(top_k=2, tied=True))
    assert new.model_dump(exclude_unset=True) == {"options": {"top_k": 2}, "tied": True}


def test_paper_recipe_uses_paper_options_with_given_overrides() -> None:
    assert given("--recipe", "dume")["recipe"] == "dume"
    assert received(versions.new_version(Recipe(recipe="dume"))) == PAPER.solve
    assert versions.new_version(Recipe(recipe="dume")).head == PAPER.head
    assert versions.new_version(Recipe(recipe="dume", head="regmean")).head == "regmean"
    two = versions.new_version(Recipe(recipe="dume", top_k=2))
    assert received(two) == PAPER.solve.model_copy(update={"top_k": 2})


def test_an_invalid_option_is_named() -> None:
    with pytest.raises(MoergeError, match="`chat_template`: "):
        versions.new_version(Recipe(chat_template="no name"))


def test_unchanged_dashboard_form_requests_recommended_options() -> None:
    left = {field.name: field.options[0][0] if field.options else field.value for field in solve_form().fields}
    assert received(asked_version(left)) == RECOMMENDED.solve
    assert asked_version(left).head is None
    assert asked_version({**left, "head": "average"}).head == "average"
    assert received(asked_version({**left, "domain_weights": ""})).domain_weights == {}


def test_dume_is_the_paper_s_recipe() -> None:
    assert VERSION_RECIPES == {"recommended": RECOMMENDED, "dume": PAPER}
