"""The example of docs/performance.md follows from the formula of a pass's memory."""

import json
import os
import re
from pathlib import Path

import pytest
import torch
from rich.filesize import decimal
from transformers import AutoModelForCausalLM, LlamaConfig

from moerge.models.stored import SINGLE
from moerge.statistics.memory import Need, need
from moerge.statistics.passes import RouterPass, TrunkPass
from moerge_proto.statistics_file import StatisticsSettings

PAGE = Path(__file__).parents[4] / "docs" / "performance.md"
SHAPES = {"8B": (4096, 14336, 32), "70B": (8192, 28672, 64)}
ROWS = re.findall(r"^\| (8B|70B) \| (trunk|router) \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def hollow(folder: Path, name: str) -> Path:
    """A Llama of that size in bfloat16 with one layer and a small vocabulary, in a file without blocks on the disk."""
    hidden, intermediate, heads = SHAPES[name]
    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_attention_heads=heads,
        num_key_value_heads=8,
        num_hidden_layers=1,
        vocab_size=256,
    )
    config.save_pretrained(folder)
    header, end = dict[str, object](), 0
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    for tensor, parameter in model.state_dict().items():
        start, end = end, end + 2 * parameter.numel()
        header[tensor] = {"dtype": "BF16", "shape": list(parameter.shape), "data_offsets": [start, end]}
    data = json.dumps(header).encode()
    with (folder / SINGLE).open("wb") as out:
        out.write(len(data).to_bytes(8, "little") + data)
        os.truncate(out.fileno(), 8 + len(data) + end)
    return folder


def cells(own: Need) -> list[str]:
    sizes = (own.weights, own.sums, own.batch, own.device(), own.host(on_gpu=True), own.journal, own.token, own.least)
    return [decimal(size) for size in sizes]


@pytest.mark.parametrize(("name", "kind", "row"), ROWS)
def test_the_page_has_the_memory_of_these_models(tmp_path: Path, name: str, kind: str, row: str) -> None:
    folder = hollow(tmp_path / "expert", name)
    work = TrunkPass(folder, [0] * 3, "bfloat16") if kind == "trunk" else RouterPass(folder, folder, [0], "bfloat16")
    found = need(work, StatisticsSettings(precision="bfloat16"))
    assert row.split(" | ") == cells(found)


def test_the_page_has_both_passes_of_both_models() -> None:
    assert [(name, kind) for name, kind, _ in ROWS] == [(name, kind) for name in SHAPES for kind in ("trunk", "router")]
