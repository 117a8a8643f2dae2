"""The peer: `mergekit-moe` from PyPI, in a separate virtual environment."""

import json
import os
import subprocess
import venv
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path

from filelock import FileLock
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from moerge.errors import MoergeError
from moerge.files import cache_folder
from moerge.models.adapters import tokenizer_folder
from moerge.models.expert_folder import dense_folder
from moerge_lab.recipes.base import Fleet, Model, Options, Recipe, whole
from moerge_lab.recipes.dense import merged_model
from moerge_lab.recipes.models import Routed

MERGEKIT = "mergekit==0.1.5"
COMMAND = "MOERGE_MERGEKIT"
"""The environment variable with the path of an installed `mergekit-moe`."""
_TOLD = 2000  # characters of a failed command's output


def mergekit(home: Path, *pip_options: str) -> Path:
    """The command in a separate virtual environment at `home`, which is made once.

    It has this environment's versions of torch and transformers, so that its output can be read. Torch is installed
    first and alone, to get its CPU build.

    Raises:
        MoergeError: it can't be installed.
    """
    command = home / "bin" / "mergekit-moe"
    home.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(home.with_name(home.name + ".lock")):
        if not command.is_file():
            venv.create(home, with_pip=True, clear=True)
            ours = [f"{name}=={version(name).partition('+')[0]}" for name in ("torch", "transformers")]
            for wanted in (ours[:1], [*ours, MERGEKIT]):
                pip = [str(home / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", *pip_options]
                _run([*pip, *wanted], f"set {COMMAND} to the path of an installed mergekit-moe")
    return command


def _run(command: list[str], todo: str) -> None:
    """Runs a command; if it fails, the error has the end of its output."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"HF_HUB_OFFLINE": "1"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
    if ended.returncode:
        said = (ended.stdout + ended.stderr)[-_TOLD:].strip()
        raise MoergeError(f"exit status {ended.returncode}: {said}", where=Path(command[0]).name, todo=todo)


def _command() -> Path:
    named = os.environ.get(COMMAND)
    if named is None:
        return mergekit(cache_folder() / MERGEKIT.replace("==", "-"))
    if not Path(named).is_file():
        raise MoergeError(f"no such file: {named}", where=COMMAND, todo="set it to mergekit-moe's path, or unset it")
    return Path(named)


def settings(fleet: Fleet, base: Path, gates: str, options: Options) -> dict[str, object]:
    """mergekit-moe's settings: the model of the trunk, and the experts, each with the beginnings of some statistics
    documents as positive prompts."""
    most, tokens = whole(options, "prompts", 1), whole(options, "tokens", 1)
    tokenizer = _tokenizer(fleet)
    experts = []
    for domain in fleet.domains:
        beginnings = [text[:tokens] for text in domain.statistics[:most]]
        prompts = [tokenizer.decode(text, skip_special_tokens=True) for text in beginnings]
        folder = dense_folder(domain.expert, fleet.work / "dense" / domain.name)  # mergekit reads files
        experts.append({"source_model": str(folder.resolve()), "positive_prompts": prompts})
    return {
        "base_model": str(base.resolve()),
        "gate_mode": gates,
        "dtype": "float32",
        "experts_per_token": whole(options, "k", 1, len(fleet.domains)),
        "experts": experts,
    }


def _tokenizer(fleet: Fleet) -> PreTrainedTokenizerBase:
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        tokenizer_folder(fleet.domains[0].expert), local_files_only=True, trust_remote_code=False
    )
    return tokenizer


def _merged(fleet: Fleet, base: Path, gates: str, options: Options) -> Model:
    config, out = fleet.work / "mergekit-moe.yml", fleet.work / base.name / gates
    config.write_text(json.dumps(settings(fleet, base, gates, options)), encoding="utf-8")  # JSON is YAML
    todo = "leave out mergekit-moe's recipes; it supports only Llama, Mistral and Qwen experts"
    _run([str(_command()), str(config), str(out), "--device", "cpu"], todo)
    return Routed.of(out, fleet.device, fleet.dtype)


def averaged(fleet: Fleet) -> Path:
    """Folder of the dense average of the experts, for mergekit-moe's trunk."""
    folder = fleet.work / "averaged"
    merged_model(replace(fleet, dtype="float32"), "average", {}).save_pretrained(folder)
    _tokenizer(fleet).save_pretrained(folder)
    return folder


def _build(name: str, gates: str, fleet: Fleet, options: Options) -> Iterator[tuple[str, Model]]:
    yield name, _merged(fleet, averaged(fleet), gates, options)
    if fleet.base is not None:
        yield f"{name}, base trunk", _merged(fleet, fleet.base, gates, options)


def _recipe(name: str, gates: str) -> Recipe:
    return Recipe(
        name,
        f"{MERGEKIT} from PyPI: gate_mode {gates}, on the averaged trunk and on the base model's",
        partial(_build, name, gates),
        options={"k": 2, "prompts": 8, "tokens": 64},
        asked_only=True,
    )


RECIPES = (_recipe("mergekit-hidden", "hidden"), _recipe("mergekit-cheap-embed", "cheap_embed"))
