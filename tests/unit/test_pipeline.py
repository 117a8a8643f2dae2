"""The pipeline that the package's docstring shows, and the names that the package offers."""

import json
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
import torch
from transformers import AutoModelForCausalLM

import moerge
from support.models import expert
from support.versions import ROWS, contributed_rows


def shown() -> str:
    """The docstring's code."""
    lines = (moerge.__doc__ or "").splitlines()
    code = [line for line in lines if line.startswith("    ") or not line]
    return dedent("\n".join(code)).strip()


def test_the_docstring_s_pipeline_makes_a_stock_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed, name in enumerate(("code", "law"), 1):
        expert(tmp_path / name, seed)
    monkeypatch.chdir(tmp_path)
    exec(shown(), {"texts": {"code": contributed_rows(0), "law": contributed_rows(1)}})  # noqa: S102  # our own words
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    assert model.config.architectures == ["MixtralForCausalLM"]
    assert torch.isfinite(model(torch.tensor(ROWS)).logits).all()
    lineage = json.loads((tmp_path / "merged" / "moerge.json").read_text())
    assert (lineage["domains"], lineage["options"]["routers"]) == (["code", "law"], "discriminant")


def test_the_package_offers_its_names_without_loading_torch() -> None:
    code = f"import sys, moerge; assert {moerge.__all__!r} == moerge.__all__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0  # noqa: S603  # our own code
    assert all(callable(getattr(moerge, name)) for name in moerge.__all__)
    with pytest.raises(AttributeError, match="no attribute 'merged'"):
        moerge.merged  # noqa: B018
