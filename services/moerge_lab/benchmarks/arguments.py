"""Parsed options of `moerge benchmark`."""

import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from moerge.errors import MoergeError
from moerge.files import user_path
from moerge.settings import single_values
from moerge_lab.benchmarks.models import SEED, Model, Role, model
from moerge_lab.benchmarks.settings import Settings
from moerge_lab.benchmarks.tasks import PAPER, TASKS

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
PAPER_TASKS = "paper"
_VLLM = "in an environment of its own: pip install vllm moerge 'lm_eval[hf,ifeval]==0.4.13'"


def tasks(text: str, experts: Sequence[str]) -> dict[str, str | None]:
    """Task -> its own expert, from TASK or TASK=EXPERT with commas between them; None: not given.

    Raises:
        MoergeError: an unknown task or expert.
    """
    result: dict[str, str | None] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, equals, own = item.partition("=")
        if equals and own not in experts:
            todo = f"use one of: {', '.join(experts)}"
            raise MoergeError(f"{name} has the unknown expert {own!r}", where="`tasks`", todo=todo)
        for each in PAPER if name == PAPER_TASKS else (name,):
            if each not in TASKS:
                known = f"use some of: {', '.join(TASKS)}, {PAPER_TASKS}"
                todo = f"{known}; lm_eval's own tasks read the hub, without moerge: lm_eval run --tasks {each}"
                raise MoergeError(f"unknown task {each!r}", where="`tasks`", todo=todo)
            result[each] = own or result.get(each)
    if not result:
        raise MoergeError("no task is named", where="`tasks`", todo=f"name some of: {', '.join(TASKS)}")
    return result


def require_harness(settings: Settings) -> None:
    """Requires installed packages."""
    packages = {"lm_eval": "pip install 'moerge[eval]'"}
    if settings.backend == "vllm":
        packages["vllm"] = _VLLM
    for package, todo in packages.items():
        if find_spec(package) is None:
            raise MoergeError(f"needs {package}", where="moerge benchmark", todo=todo)


def models(versions: Sequence[str], experts: Sequence[str], base: str | None, out: Path) -> list[Model]:
    """The seed, the experts and the versions, in this order.

    Raises:
        MoergeError: a name is invalid or given twice, there is no expert, or a model is missing.
    """
    named = single_values("expert", experts)
    if not named:
        raise MoergeError("no expert to compare with", where="`expert`", todo="give each with `expert` NAME=DIR")
    places: list[tuple[str, Role, str]] = [] if base is None else [(SEED, "seed", base)]
    places += [(name, "expert", place) for name, place in named.items()]
    places += [_version(text, alone=len(versions) == 1) for text in versions]
    result: list[Model] = []
    for name, role, place in places:
        if not _NAME.fullmatch(name) or name in {item.name for item in result}:
            todo = "give each model its own name, of letters, digits, - _ and ."
            raise MoergeError(f"the name {name!r} is invalid or given twice", where="moerge benchmark", todo=todo)
        result.append(model(name, role, place, out / "adapters"))
    return result


def _version(text: str, *, alone: bool) -> tuple[str, Role, str]:
    """Name and place of DIR or NAME=DIR."""
    name, equals, place = text.partition("=")
    folder = user_path(text)
    if equals and not folder.is_dir():
        return name, "version", place
    return "version" if alone else folder.resolve().name, "version", text
