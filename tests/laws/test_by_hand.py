"""`examples/by_hand.py`, the method in one file without moerge, makes the model of `moerge merge --recipe dume`."""

import json
import runpy
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from moerge.documents.splits import SplitRule
from moerge.merging.merge import MergeSettings, merge
from moerge_proto.recipes import PAPER
from support.merging import SMALL, source
from support.models import expert, texts

BY_HAND = Path(__file__).parents[2] / "examples" / "by_hand.py"
DOMAINS = "code", "law", "medicine"


def test_the_method_by_hand_is_the_recipe_dume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All tensors agree within the rounding of contributions and of the passes in float32."""
    arguments, rule = [], SplitRule()
    for slot, domain in enumerate(DOMAINS):
        expert(tmp_path / domain, seed=slot + 1, apart=0.02, **SMALL)
        written = texts(tmp_path / f"{domain}.jsonl", seed=6 * slot, documents=80)
        lines = [line for line in written.read_text().splitlines() if not held_out(rule, line)]
        (tmp_path / f"{domain}.txt").write_text("\n".join(lines))
        arguments += ["--expert", f"{domain}={tmp_path / domain}", "--text", f"{domain}={tmp_path / domain}.txt"]
    monkeypatch.setattr("sys.argv", ["by_hand.py", *arguments, "--out", str(tmp_path / "by-hand")])
    runpy.run_path(str(BY_HAND), run_name="__main__")
    settings = MergeSettings(recipe=PAPER, scored_tokens=0)
    merge([source(tmp_path, domain) for domain in DOMAINS], tmp_path / "merged", settings)

    by_hand, merged = (AutoModelForCausalLM.from_pretrained(tmp_path / name) for name in ("by-hand", "merged"))
    assert by_hand.config.model_type == merged.config.model_type == "mixtral"
    expected = merged.state_dict()
    for name, tensor in by_hand.state_dict().items():
        assert torch.allclose(tensor, expected[name], rtol=0, atol=1e-5), name
    assert expected.keys() == by_hand.state_dict().keys()


def held_out(rule: SplitRule, line: str) -> bool:
    """Tell whether moerge keeps a document out of its statistics, for the table."""
    return rule.split(rule.named(json.loads(line)["text"])[1]) == "held-out"
