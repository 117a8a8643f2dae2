"""The example of docs/performance.md follows from the formula of a pass's memory; a container's use isn't free."""

import re
from pathlib import Path
from typing import Any

import pytest
from rich.filesize import decimal
from transformers import LlamaConfig

from moerge.statistics import memory
from moerge.statistics.memory import free_bytes, need
from moerge.statistics.passes import RouterPass, TrunkPass
from moerge_proto.statistics_file import StatisticsSettings
from support.models import expert
from support.peaks import peak_of

PAGE = Path(__file__).parents[4] / "docs" / "performance.md"
SHAPES = {"8B": (4096, 14336, 32), "70B": (8192, 28672, 64)}
ROWS = re.findall(r"^\| (8B|70B) \| (trunk|router) \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize(("name", "kind", "row"), ROWS)
def test_the_page_has_the_memory_of_these_models(tmp_path: Path, name: str, kind: str, row: str) -> None:
    hidden, intermediate, heads = SHAPES[name]
    shape: dict[str, Any] = {"hidden_size": hidden, "intermediate_size": intermediate, "num_hidden_layers": 1}
    LlamaConfig(**shape, num_attention_heads=heads, num_key_value_heads=8).save_pretrained(tmp_path)
    work = TrunkPass(tmp_path, []) if kind == "trunk" else RouterPass(tmp_path, tmp_path, [])
    own = need(work, StatisticsSettings(precision="bfloat16"))
    sizes = (own.weights, own.sums, own.batch, own.device(), own.host(on_gpu=True), own.journal, own.token, own.least)
    assert row.split(" | ") == [decimal(size) for size in sizes]


def test_the_page_has_both_passes_of_both_models() -> None:
    assert [(name, kind) for name, kind, _ in ROWS] == [(name, kind) for name in SHAPES for kind in ("trunk", "router")]


@pytest.mark.parametrize(("number", "prefix"), [(0, ""), (1, "total_")])
def test_in_a_container_what_is_used_is_not_free_but_pages_of_files_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, prefix: str
) -> None:
    _, limit, used, _ = memory._CGROUPS[number]
    monkeypatch.setattr(memory, "_CGROUPS", ((str(tmp_path), limit, used, prefix),))
    stat = f"anon 700000\n{prefix}inactive_file 100000\n{prefix}active_file 50000\n"
    for name, content in ((limit, "1000000\n"), (used, "850000\n"), ("memory.stat", stat)):
        (tmp_path / name).write_text(content)
    assert free_bytes("cpu") == 300000
    (tmp_path / used).write_text("2000000\n")
    assert free_bytes("cpu") == 0
    (tmp_path / used).unlink()
    assert free_bytes("cpu") == 1000000
    (tmp_path / limit).write_text("max\n")
    found = free_bytes("cpu")
    assert found is not None
    assert found > 1000000


SUMMED = """
from moerge.documents.shards import Shard
from moerge.models.tokens import Tokens
from moerge.statistics.passes import RouterPass
from moerge.statistics.streamed import Streamed
def call(folder):
    streamed = Streamed(RouterPass(folder, folder, [0] * 2), 2048)
    shard = Shard("one", [Tokens([row] * 64) for row in range(32)], 32)
    for _ in range(streamed.begin([shard]), streamed.layers):
        streamed.sums(["one"])
"""


def test_the_peak_of_a_wide_mlp_is_within_the_formula(tmp_path: Path) -> None:
    """Its gate, its other half and their product are in memory together."""
    folder = expert(tmp_path / "expert", 1, intermediate_size=6000, num_hidden_layers=2)
    own = need(RouterPass(folder, folder, []), StatisticsSettings())
    assert own.batch > 3 * 4 * 2048 * 6000
    assert peak_of(SUMMED, folder) < own.host() + 2048 * own.token + 2**24
