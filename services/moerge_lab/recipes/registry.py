"""Every recipe by name, and the syntax NAME or NAME:OPTION=VALUE,OPTION=VALUE."""

from difflib import get_close_matches
from math import isfinite

from moerge.errors import MoergeError
from moerge_lab.recipes import btm, dense, expert_routing, mergeme, mixtures, published, recommended, soups, trained
from moerge_lab.recipes.base import Options, Recipe, Value

_MODULES = (dense, btm, expert_routing, mergeme, published, recommended, trained, mixtures, soups)
RECIPES: dict[str, Recipe] = {recipe.name: recipe for module in _MODULES for recipe in module.RECIPES}


def parse(spec: str) -> tuple[Recipe, Options, str]:
    """The recipe of a text such as "dume:k=2,lambda=0.1", all of its options, and a label with the given ones.

    Raises:
        MoergeError: there is no such recipe or option, or its value is no number or none of its words.
    """
    name, _, rest = spec.partition(":")
    if name not in RECIPES:
        raise _unknown(f"no recipe {name!r}", spec, name, list(RECIPES))
    recipe, given = RECIPES[name], dict[str, Value]()
    for pair in filter(None, rest.split(",")):
        option, _, value = pair.partition("=")
        if option not in recipe.options:
            raise _unknown(f"no option {option!r} of {name}", spec, option, list(recipe.options))
        given[option] = _word(spec, recipe, option, value) if option in recipe.words else _number(spec, pair, value)
    return recipe, {**recipe.options, **given}, label_of(recipe, given)


def _number(spec: str, pair: str, value: str) -> float:
    try:
        number = float(value)
        if isfinite(number):
            return number
    except ValueError:
        pass
    raise MoergeError(f"expected OPTION=NUMBER, found {pair!r}", where=f"`recipe` {spec}")


def _word(spec: str, recipe: Recipe, option: str, value: str) -> str:
    if value not in (words := recipe.words[option]):
        raise MoergeError(f"no {option} {value!r}", where=f"`recipe` {spec}", todo=f"use one of: {', '.join(words)}")
    return value


def shown(value: Value) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def label_of(recipe: Recipe, given: Options) -> str:
    """The recipe's name with the options that differ from the defaults."""
    differing = [f"{name}={shown(value)}" for name, value in given.items() if value != recipe.options[name]]
    return recipe.name + (f":{','.join(differing)}" if differing else "")


def _unknown(what: str, spec: str, name: str, known: list[str]) -> MoergeError:
    near = get_close_matches(name, known, 1)
    meant = f"did you mean {near[0]}? " if near else ""
    there = f"use one of: {', '.join(known)}" if known else "it has no options"
    return MoergeError(what, where=f"`recipe` {spec}", todo=meant + there)
