"""`moerge table`, as a user runs it, on a tiny version."""

import json
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from moerge.errors import MoergeError
from moerge.evaluate.commands import table
from moerge.evaluate.measure import Settings, Texts, measure
from moerge.evaluate.perplexity import score, windows
from moerge.evaluate.table import Run
from moerge.progress import LogProgress
from moerge.recipes.registry import parse
from moerge_proto.versions import Lineage, SolveOptions
from support.models import expert
from support.progress import Silent
from support.versions import ROWS, published


def version_of(experts: list[Path], folder: Path) -> Path:
    """A published version with its lineage, which names the domains d0, d1, … in slot order."""
    version = published(experts, folder)
    lineage = Lineage(
        trunk="0" * 64,
        experts=["1" * 64] * len(experts),
        domains=[f"d{slot}" for slot in range(len(experts))],
        contributions=["2" * 64],
        options=SolveOptions(),
        solver="test",
    )
    (version / "moerge.json").write_text(lineage.model_dump_json())
    return version


def text_file(path: Path, *texts: str) -> Path:
    path.write_text("".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts), encoding="utf-8")
    return path


def test_the_table_is_that_of_the_version_s_slots_whatever_the_order_of_the_options(tmp_path: Path) -> None:
    experts = [expert(tmp_path / f"e{slot}", seed=slot) for slot in range(2)]
    version = version_of(experts, tmp_path)
    files = [text_file(tmp_path / f"{slot}.jsonl", "the quick brown fox" * (slot + 1)) for slot in range(2)]
    found = []
    for order in ([0, 1], [1, 0]):
        table(
            version=version,
            expert=[f"d{slot}={experts[slot]}" for slot in order],
            held_out=[f"d{slot}={files[slot]}" for slot in order],
            context=16,
            stride=8,
            tokens=30,
            json_file=tmp_path / "table.json",
        )
        found.append(json.loads((tmp_path / "table.json").read_text()))
    first, second = ({(r["row"], r["domain"]): r["score"] for r in each["records"]} for each in found)
    assert first == second
    rows = ["d0 expert", "d1 expert", "averaging", "random routing", "oracle", "version"]
    assert list(first) == [(row, domain) for row in rows for domain in ("d0", "d1")]
    assert found[0]["domains"] == ["d0", "d1"]
    assert found[0]["tokens"] == {"d0": 18, "d1": 31}  # whole windows, until 30 are reached
    assert first["d0 expert", "d0"] == first["d1 expert", "d1"] == 100.0
    assert {domain: sum(shares) for domain, shares in found[0]["shares"]["version"].items()} == {
        "d0": pytest.approx(1),
        "d1": pytest.approx(1),
    }


def test_line_separators_within_a_text_end_no_document(tmp_path: Path) -> None:
    """JSON leaves U+2028, U+2029 and U+0085 as they are; only a newline ends a line of JSON Lines."""
    folder = expert(tmp_path / "expert", seed=1)
    version = version_of([folder], tmp_path)
    text = text_file(tmp_path / "text.jsonl", "one\u2028two\u2029three\u0085four")
    table(version=version, expert=[f"d0={folder}"], held_out=[f"d0={text}"], context=64, stride=32)


def test_a_text_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    folder = expert(tmp_path / "expert", seed=1)
    version = version_of([folder], tmp_path)
    text = tmp_path / "text.jsonl"
    text.write_bytes(b'{"text": "fine"}\n{"text": "\xff"}\n')
    with pytest.raises(MoergeError) as caught:
        table(version=version, expert=[f"d0={folder}"], held_out=[f"d0={text}"])
    assert str(text) in caught.value.where


def test_experts_that_are_not_the_version_s_are_refused(tmp_path: Path) -> None:
    folder = expert(tmp_path / "expert", seed=1)
    version = version_of([folder], tmp_path)
    text = text_file(tmp_path / "text.jsonl", "text")
    with pytest.raises(MoergeError, match="expected d0, found d1"):
        table(version=version, expert=[f"d1={folder}"], held_out=[f"d1={text}"])
    with pytest.raises(MoergeError, match="not found") as caught:
        table(version=folder, expert=[f"d0={folder}"], held_out=[f"d0={text}"])
    assert caught.value.where == str(folder / "moerge.json")


@pytest.mark.parametrize("tied", [(True, False), (False, True)])
def test_the_average_of_a_tied_and_an_untied_expert_counts_the_embedding_as_head(
    tmp_path: Path, tied: tuple[bool, bool]
) -> None:
    folders = [expert(tmp_path / f"e{i}", seed=i, tie_word_embeddings=tie) for i, tie in enumerate(tied)]
    cut = windows(ROWS[:1], 32, 16)
    domains = {f"d{slot}": Texts(folder, cut) for slot, folder in enumerate(folders)}
    runs = [Run(*parse(name)) for name in ("experts", "averaging")]
    result = measure(runs, domains, Settings(), LogProgress())
    one, two = (AutoModelForCausalLM.from_pretrained(folder).state_dict() for folder in folders)
    mean = AutoModelForCausalLM.from_pretrained(folders[tied.index(False)])
    mean.load_state_dict({name: (one[name] + two[name]) / 2 for name in one})
    [averaging] = result.row("averaging").results
    assert averaging.scores["d0"].nll == pytest.approx(score(mean, cut, Silent()).nll, rel=1e-5)
