"""Wrong options are errors before a model is loaded."""

from pathlib import Path

import pytest

from moerge.errors import MoergeError
from moerge_lab.benchmarks import arguments
from moerge_lab.benchmarks.models import Model, require_models
from moerge_lab.benchmarks.settings import Settings
from moerge_lab.benchmarks.tasks import PAPER
from support.models import adapter, expert


def test_tasks_have_their_experts() -> None:
    experts = ["math", "law"]
    assert arguments.tasks("gsm8k=math, piqa", experts) == {"gsm8k": "math", "piqa": None}
    assert arguments.tasks("paper,gsm8k=math", experts) == {**dict.fromkeys(PAPER), "gsm8k": "math"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("piqax", "unknown task 'piqax'(.|\n)*arc-easy"),
        ("mmlu", "the hub(.|\n)*lm_eval run --tasks mmlu"),
        ("piqa=art", "unknown expert 'art'(.|\n)*law"),
        (" ,", "no task"),
    ],
)
def test_wrong_tasks(text: str, problem: str) -> None:
    with pytest.raises(MoergeError, match=problem):
        arguments.tasks(text, ["law"])


def test_a_missing_engine() -> None:
    with pytest.raises(MoergeError, match="needs vllm"):
        arguments.require_harness(Settings(None, backend="vllm"))


def test_models_have_names(tmp_path: Path) -> None:
    dense = expert(tmp_path / "dense", 1)
    tuned = adapter(tmp_path / "adapter", dense, 2)
    found = arguments.models([str(dense)], [f"code={dense}", f"law={tuned}"], str(dense), tmp_path / "out")
    assert [(item.name, item.role) for item in found] == [
        ("seed", "seed"), ("code", "expert"), ("law", "expert"), ("version", "version"),
    ]  # fmt: skip
    assert found[2].folder.is_relative_to(tmp_path / "out")
    several = arguments.models([str(dense), f"b={dense}"], [f"code={dense}"], None, tmp_path / "out")
    assert [item.name for item in several] == ["code", "dense", "b"]
    for versions, experts in (([str(dense)], []), ([f"code={dense}"], [f"code={dense}"]), (["no"], [f"code={dense}"])):
        with pytest.raises(MoergeError):
            arguments.models(versions, experts, None, tmp_path / "out")


def test_memory_and_templates_are_checked(tmp_path: Path) -> None:
    dense = Model("dense", "expert", expert(tmp_path / "dense", 1))
    size = (tmp_path / "dense" / "model.safetensors").stat().st_size
    assert 0.9 * size < dense.need(None, "cpu").on_device <= size
    assert dense.need("bfloat16", "cpu").on_device * 2 == dense.need("float32", "cpu").on_device
    require_models([dense], None, "cpu", chat=False)
    with pytest.raises(MoergeError, match="no chat template"):
        require_models([dense], None, "cpu", chat=True)
    with pytest.raises(MoergeError, match=r"not enough memory(.|\n)*the benchmark of dense"):
        require_models([dense], None, "cuda", chat=False)
