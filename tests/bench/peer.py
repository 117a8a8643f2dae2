"""The peer: `mergekit-moe` from PyPI, in a separate virtual environment."""

import os
import subprocess
import venv
from importlib.metadata import version
from pathlib import Path
from typing import Any

from filelock import FileLock
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from moerge.errors import MoergeError
from moerge.models.adapters import tokenizer_folder
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import dense_folder
from moerge_lab.recipes.base import Fleet
from moerge_lab.recipes.dense import merged_model

MERGEKIT = "mergekit==0.1.5"
PROMPTS, PROMPT_TOKENS, TOP_K = 8, 64, 2
"""Prompts per domain, the tokens of each, and experts per token."""
_SHOWN = 2000  # characters of a failed command's output


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
                _run([*pip, *wanted])
    return command


def _run(command: list[str]) -> None:
    """Runs a command; if it fails, the error has the end of its output."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
    if ended.returncode:
        output = (ended.stdout + ended.stderr)[-_SHOWN:].strip()
        raise MoergeError(f"exit status {ended.returncode}: {output}", where=Path(command[0]).name)


def settings(fleet: Fleet, base: Path) -> dict[str, Any]:
    """mergekit-moe's settings: the model of the body, and the experts, each with the beginnings of some statistics
    documents as positive prompts."""
    tokenizer = _tokenizer(fleet)
    experts = []
    for domain in fleet.domains:
        beginnings = [text[:PROMPT_TOKENS] for text in domain.statistics[:PROMPTS]]
        prompts = [tokenizer.decode(text, skip_special_tokens=True) for text in beginnings]
        folder = dense_folder(DenseFiles(domain.expert), fleet.work / "dense" / domain.name)  # mergekit reads files
        experts.append({"source_model": str(folder.resolve()), "positive_prompts": prompts})
    return {
        "base_model": str(base.resolve()),
        "gate_mode": "hidden",
        "dtype": "float32",
        "experts_per_token": TOP_K,
        "experts": experts,
    }


def _tokenizer(fleet: Fleet) -> PreTrainedTokenizerBase:
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        tokenizer_folder(fleet.domains[0].expert), local_files_only=True, trust_remote_code=False
    )
    return tokenizer


def averaged(fleet: Fleet) -> Path:
    """Folder of the dense average of the experts, for mergekit-moe's body."""
    folder = fleet.work / "averaged"
    merged_model(fleet, "average", {}).save_pretrained(folder)
    _tokenizer(fleet).save_pretrained(folder)
    return folder
