"""Configurations of mergekit-moe become recipes, or errors that name what has no equal."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_group

from moerge.errors import MoergeError
from moerge.merging import commands
from moerge.merging.recipe_command import keys_of
from moerge.merging.recipe_file import RecipeFile, read_recipe
from support.merging import SMALL
from support.models import expert
from support.processes import run_command

KEYS = keys_of(get_group(commands.app))
CONFIG = """\
base_model: lab/base
gate_mode: hidden
dtype: bfloat16
experts:
  - source_model: lab/Law-7B@v1
    positive_prompts:
      - "As a judge,"
      - "The court"
  - source_model: ./art
    positive_prompts: ["A painting"]
    negative_prompts: []
"""


def read(folder: Path, text: str) -> RecipeFile:
    path = folder / "moe.yml"
    path.write_text(text)
    return read_recipe(path, KEYS)


def test_experts_and_prompts_become_options(tmp_path: Path) -> None:
    (tmp_path / "art").mkdir()
    file = read(tmp_path, CONFIG)
    options: dict[str, Any] = {key.name: file.option(key) for key in KEYS if key.name in file.values}
    assert options == {
        "expert": ["law-7b=lab/Law-7B@v1", f"art={tmp_path / 'art'}"],
        "prompt": ["law-7b=As a judge,", "law-7b=The court", "art=A painting"],
        "body": "seed",
        "base": "lab/base",
        "top_k": 2,
    }
    assert file.place(("prompt", "art")) == f"{tmp_path / 'moe.yml'}, line 10"


def test_what_is_ignored_without_loss_is_told(tmp_path: Path) -> None:
    notes = read(tmp_path, f"{CONFIG}architecture: mixtral\n").notes
    assert [note.partition(" is ")[0] for note in notes] == [
        f"{tmp_path / 'moe.yml'}, line 3: dtype bfloat16",
        f"{tmp_path / 'moe.yml'}, line 12: architecture mixtral",
        f"{tmp_path / 'moe.yml'}: experts_per_token",
    ]
    assert read(tmp_path, CONFIG.replace("dtype: bfloat16", "experts_per_token: 1")).notes == []


def test_models_of_one_name_are_numbered(tmp_path: Path) -> None:
    same = CONFIG.replace("./art", "other/law-7b")
    assert list(read(tmp_path, same).values["expert"]) == ["law-7b", "law-7b-2"]


def test_a_configuration_gives_a_version_under_the_body_of_its_base_model(tmp_path: Path) -> None:
    for seed, name in enumerate(("base", "Law-7B", "art")):
        expert(tmp_path / "lab" / name, seed, **SMALL)
    text = CONFIG.replace("lab/Law-7B@v1", "lab/Law-7B").replace("./art", "lab/art")
    (tmp_path / "moe.yml").write_text(text)
    given = ["--config", tmp_path / "moe.yml", "--out", tmp_path / "out", "--prompt-tokens=300", "--top-k=1"]
    done = run_command("merge", *given)
    assert done.returncode == 0, done.stderr
    assert "moe.yml, line 3: dtype bfloat16 is ignored" in done.stderr
    made = json.loads((tmp_path / "out" / "moerge.json").read_text())
    assert made["domains"] == ["law-7b", "art"]
    assert made["seed"] is not None
    recipe = yaml.safe_load((tmp_path / "out" / "merge.yaml").read_text())
    assert recipe["base"] == "../lab/base"
    assert recipe["prompt"] == {"law-7b": ["As a judge,", "The court"], "art": "A painting"}
    assert (recipe["body"], recipe["fit"], recipe["top_k"]) == ("seed", True, 1)


@pytest.mark.parametrize(
    ("old", "new", "line", "what"),
    [
        ("hidden", "random", 2, "gate_mode random: it has no equal here"),
        ("hidden", "cheap_embed", 2, "gate_mode cheap_embed: it has no equal here"),
        ("negative_prompts: []", "negative_prompts: [law]", 11, "experts.1.negative_prompts: it has no equal here"),
        ("negative_prompts: []", "noise_scale: 0.1", 11, "experts.1.noise_scale: it has no equal here"),
        ("negative_prompts: []", "residual_scale: 0.1", 11, "experts.1.residual_scale: it has no equal here"),
        ("dtype: bfloat16", "shared_experts: [{source_model: x}]", 3, "shared_experts: it has no equal here"),
        ("dtype: bfloat16", "tokens: 5", 3, "unknown key 'tokens'"),
        ("negative_prompts: []", "positive_prompt: x", 11, "unknown key 'experts.1.positive_prompt'"),
        ('positive_prompts: ["A painting"]', "residual_scale: 0", 9, "experts.1.positive_prompts is missing"),
        ("lab/base", "{model: x}", 1, "base_model: expected a valid string"),
        ('["A painting"]', '["@/etc/passwd"]', 10, "a prompt begins with @"),
    ],
)
def test_what_has_no_equal_is_an_error_with_its_line(tmp_path: Path, old: str, new: str, line: int, what: str) -> None:
    with pytest.raises(MoergeError) as caught:
        read(tmp_path, CONFIG.replace(old, new, 1))
    assert caught.value.where == f"{tmp_path / 'moe.yml'}, line {line}"
    assert caught.value.what.startswith(what)
    assert caught.value.todo
