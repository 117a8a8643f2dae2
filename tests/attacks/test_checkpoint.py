"""A hostile checkpoint or adapter, from the hub or another owner."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from moerge.documents.chat_templates import Renderer, TemplateRefusal
from moerge.documents.conversations import conversation
from moerge.errors import CheckpointError, MoergeError
from moerge.merging.prompts import Prompts, checked
from moerge.models.adapters import base_of
from moerge.models.config import read_config
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import DenseExpert, check_expert
from moerge.models.sources import BASE
from moerge.scoring.perplexity import load
from support.models import adapter, expert, tokenizer

PLAIN = "{% for message in messages %}{{ message.content }}{% endfor %}"
MESSAGES = [{"role": "user", "content": "a"}]


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(seconds=1)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return expert(tmp_path_factory.mktemp("checkpoint") / "good", 1, num_hidden_layers=1)


def changed(folder: Path, name: str, **fields: object) -> Path:
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    return folder


RECURSION = "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"
LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize("template", [LOOPS, "{{ 'a' * 4000000000 }}", "{{ 'a' * 70000000 }}"])
def test_template_without_end_or_bound_is_stopped(renderer: Renderer, template: str) -> None:
    with pytest.raises(MoergeError, match="one conversation takes over 1 s, 512 MiB"):
        renderer.text(template, MESSAGES)
    assert renderer.text(PLAIN, MESSAGES) == "a"


@pytest.mark.parametrize("template", ["{{ ''.__class__.__mro__ }}", "{% for", RECURSION])
def test_error_of_a_template_is_no_traceback(good: Path, tmp_path: Path, renderer: Renderer, template: str) -> None:
    with pytest.raises(TemplateRefusal):
        renderer.text(template, MESSAGES)
    folder = Path(shutil.copytree(good, tmp_path / "expert"))
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(MoergeError, match="the chat template refuses a prompt") as refused:
        checked(DenseExpert("law", folder), Prompts(["a"], 1), 32)
    assert refused.value.where == "`prompt` law"


def test_template_of_documents_has_the_same_limits() -> None:
    """It ends the run, so that no further document costs as much."""
    talker: Any = tokenizer()
    talker.chat_template = "{{ 'a' * 4000000000 }}"
    with pytest.raises(MoergeError, match="takes over"):
        conversation(MESSAGES, talker, "all")


ABSURD: dict[str, tuple[dict[str, object], str]] = {
    "a pattern that hangs": ({"rank_pattern": {"(([a-z_.0-9])+)+!": 2}}, "is not a module's name"),
    "a broken pattern": ({"alpha_pattern": {"(": 2}}, "is not a module's name"),
    "many patterns": ({"rank_pattern": {f"m{n}": 2 for n in range(9000)}}, "a dict of at most 1024 names"),
    "no dict of patterns": ({"rank_pattern": "q_proj"}, "expected a dict"),
    "a scale beyond floats": ({"lora_alpha": 10**400}, "expected a positive number"),
    "an infinite rank": ({"r": float("inf")}, "expected a positive number"),
    "a number of modules": ({"modules_to_save": 5}, "expected a list"),
    "modules without names": ({"modules_to_save": [5]}, "5 is not a module's name"),
    "a base beyond names": ({BASE: "a" * 9999}, "no base model"),
}


@pytest.mark.parametrize("fault", ABSURD)
def test_absurd_adapter_is_refused_in_words(good: Path, tmp_path: Path, fault: str) -> None:
    fields, what = ABSURD[fault]
    folder = changed(adapter(tmp_path / "adapter", good, 1), "adapter_config.json", **fields)
    with pytest.raises(CheckpointError, match=what) as refused:
        check_expert(DenseFiles(folder), None, "the adapter")
    assert "adapter_config.json" in refused.value.where


def test_adapter_of_the_hub_has_no_base_on_this_machine(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its base's weights are published, so they may not be the user's private model."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    shutil.copytree(good, tmp_path / "private" / "model")
    snapshots = tmp_path / "hub" / "models--evil--adapter" / "snapshots"
    hostile = adapter(snapshots / ("a" * 40), good, 1)
    shutil.copytree(good, snapshots / "good")
    own = shutil.copytree(hostile, tmp_path / "own")
    for name in (str(tmp_path / "private" / "model"), "private/model", "../good", f"private+{good}"):
        changed(hostile, "adapter_config.json", **{BASE: name})
        with pytest.raises(CheckpointError, match="no base model"):
            base_of(hostile)
    assert base_of(changed(own, "adapter_config.json", **{BASE: "private/model"})) == Path("private/model")


@pytest.mark.parametrize("field", ["attn_implementation", "_attn_implementation", "experts_implementation"])
def test_config_chooses_no_kernel(good: Path, tmp_path: Path, field: str) -> None:
    """transformers would download a kernel of that name, and run it."""
    folder = changed(Path(shutil.copytree(good, tmp_path / "expert")), "config.json", **{field: "evil/kernel"})
    assert "evil/kernel" not in vars(read_config(folder)).values()
    check_expert(DenseFiles(folder), None, "the expert")
    assert load(folder).config._attn_implementation != "evil/kernel"


@pytest.mark.parametrize("dtype", ["__import__('os')", "load", 5, {"a": "b"}])
def test_odd_dtype_is_refused_in_words(good: Path, tmp_path: Path, dtype: object) -> None:
    folder = changed(Path(shutil.copytree(good, tmp_path / "expert")), "config.json", dtype=dtype)
    with pytest.raises(CheckpointError, match=r"dtype|model config"):
        read_config(folder)
