"""`moerge table`, as a user runs it, on a tiny version."""

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from typer.main import get_command

from moerge.cli.options import name_options
from moerge.documents.splits import SplitRule
from moerge.errors import MoergeError
from moerge.models.tokens import Tokens
from moerge.progress import LogProgress
from moerge.scoring.draw import Cut, spread
from moerge.scoring.perplexity import Score, Window, score, total, windows
from moerge_lab.recipes.registry import RECIPES, parse
from moerge_lab.table.commands import app
from moerge_lab.table.inputs import read
from moerge_lab.table.measure import Settings, Texts, measure
from moerge_lab.table.options import Given
from moerge_lab.table.runs import possible, with_experts
from moerge_lab.table.switches import Bands, edges_of
from moerge_lab.table.table import Result, Row, Run, Table
from moerge_lab.table.texts import Sources, Split, read_elsewhere, read_texts, switched
from moerge_proto.recipes import SolveOptions
from moerge_proto.versions import HeadLineage, Lineage
from support.documents import texts_of
from support.models import expert, texts, tokenizer
from support.progress import Silent
from support.versions import ROWS, published


def table(*words: object, **options: Any) -> None:
    """`moerge table` with these words and options, as a user gives them; a list repeats its option."""
    arguments = [str(word) for word in words]
    for name, value in options.items():
        values = value if isinstance(value, (list, tuple)) else [value]
        arguments += [f"--{name.replace('_', '-')}" + ("" if item is True else f"={item}") for item in values]
    command = get_command(app)
    name_options(command)
    command.main(arguments, "table", standalone_mode=False)


def version_of(experts: list[Path], folder: Path) -> Path:
    """A published version with its lineage, which names the domains d0, d1, … in slot order."""
    version = published(experts, folder)
    lineage = Lineage(
        body="0" * 64,
        head=HeadLineage(method="average"),
        experts=["1" * 64] * len(experts),
        domains=[f"d{slot}" for slot in range(len(experts))],
        contributions=["2" * 64],
        options=SolveOptions(),
        solver="test",
    )
    (version / "moerge.json").write_text(lineage.model_dump_json())
    return version


def is_held_out(text: str) -> bool:
    return SplitRule().split(SplitRule().named(text)[1]) == "held-out"


def text_file(path: Path, *texts: str) -> Path:
    path.write_text("".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts), encoding="utf-8")
    return path


def test_a_version_s_table_has_its_slots_order(tmp_path: Path) -> None:
    experts = [expert(tmp_path / f"e{slot}", seed=slot) for slot in range(2)]
    version = version_of(experts, tmp_path)
    files = [text_file(tmp_path / f"{slot}.jsonl", "the quick brown fox" * (slot + 1)) for slot in range(2)]
    result = []
    for order in ([0, 1], [1, 0]):
        table(
            "version",
            version,
            expert=[f"d{slot}={experts[slot]}" for slot in order],
            held_out=[f"d{slot}={files[slot]}" for slot in order],
            context=16,
            tokens=30,
            json_file=tmp_path / "table.json",
        )
        result.append(json.loads((tmp_path / "table.json").read_text()))
    first, second = ({(r["row"], r["domain"]): r["score"] for r in item["records"]} for item in result)
    assert first == second
    rows = ["d0 expert", "d1 expert", "averaging", "random routing", "oracle", "version"]
    assert list(first) == [(row, domain) for row in rows for domain in ("d0", "d1")]
    assert result[0]["domains"] == ["d0", "d1"]
    assert result[0]["tokens"] == {"d0": 18, "d1": 37}  # whole windows, until there are 30
    assert first["d0 expert", "d0"] == first["d1 expert", "d1"] == 100.0
    assert {domain: sum(shares) for domain, shares in result[0]["shares"]["version"].items()} == {
        "d0": pytest.approx(1),
        "d1": pytest.approx(1),
    }


def domains_of(folder: Path) -> dict[str, Any]:
    """Options that name two tiny experts, their base and their texts, in folders and packed files."""
    for slot in range(2):
        expert(folder / f"e{slot}", seed=slot)
        (folder / f"t{slot}" / "more").mkdir(parents=True)
        texts(folder / f"t{slot}" / "a.jsonl", slot, 30)
        texts(folder / f"t{slot}" / "more" / "b.jsonl", slot + 2, 20)
    return {
        "expert": [f"d{slot}={folder}/e{slot}" for slot in range(2)],
        "text": [f"d{slot}={folder}/t{slot}" for slot in range(2)],
    }


def records(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    return {(record["row"], record["domain"]): record for record in json.loads(path.read_text())["records"]}


def test_recipes_are_measured_with_every_relevant_seed(tmp_path: Path) -> None:
    options, out, drawn = domains_of(tmp_path), tmp_path / "table.json", tmp_path / "table.svg"
    names = ["averaging", "random", "dume:k=2,tokens=8"]
    table(**options, recipe=names, seeds=2, statistics_tokens=200, tokens=100, json_file=out, svg=drawn)
    result = records(out)
    rows = ["d0 expert", "d1 expert", *names]
    assert list(result) == [(row, domain) for row in rows for domain in ("d0", "d1")]
    assert [result[row, "d0"]["seeds"] for row in rows] == [1, 1, 1, 2, 2]
    for row in ("random", "dume:k=2,tokens=8"):
        record = result[row, "d1"]
        assert record["scores"][0] != record["scores"][1]
        assert record["score"] == pytest.approx(sum(record["scores"]) / 2)
        assert record["deviation"] > 0
    assert result["dume:k=2,tokens=8", "d0"]["recipe"] == "dume"
    assert result["dume:k=2,tokens=8", "d0"]["options"] == {"k": 2, "lambda": 0.01, "tokens": 8}
    assert result["dume:k=2,tokens=8", "d0"]["active_parameters"] > result["random", "d0"]["active_parameters"]
    assert all(record["seconds"] > 0 for record in result.values())
    if sys.platform == "linux":
        assert all(record["peak_memory"] > 0 for record in result.values())
    settings = json.loads(out.read_text())["settings"]
    assert (settings["seeds"], settings["statistics_tokens"], settings["tokens"]) == (2, 200, 100)
    assert "dume:k=2,tokens=8" in drawn.read_text()


def tokens_of(cut: Sequence[Window]) -> int:
    """The number of tokens of the windows' documents; the first of each is not scored."""
    return sum(window.scored for window in cut) + len({window.document for window in cut})


def test_held_out_tenth_depends_only_on_text_and_is_excluded(tmp_path: Path) -> None:
    options = domains_of(tmp_path)
    folder, files = tmp_path / "e0", [options["text"][0].partition("=")[2]]
    result = read_texts("d0", Sources(folder, files), Cut(64, 32, 10**6))
    every = [text for file in sorted((tmp_path / "t0").rglob("*.jsonl")) for text in texts_of([file])]
    held = [text for text in every if is_held_out(text)]
    assert 0 < len(held) < 20
    assert sum(window.scored for window in result.held_out) == sum(len(text) - 1 for text in held)
    rest = [text for text in every if text not in held]
    assert sum(map(len, result.statistics)) + tokens_of(result.tuning) == sum(map(len, rest))
    assert max(map(len, result.statistics)) <= 64
    named = read_texts("d0", Sources(folder, files, [str(tmp_path / "t0" / "more")]), Cut(64, 32, 10**6))
    first = sum(len(text) for text in texts_of([tmp_path / "t0" / "a.jsonl"]))
    assert sum(map(len, named.statistics)) + tokens_of(named.tuning) == first


def test_no_document_is_of_two_parts_whichever_part_is_scored(tmp_path: Path) -> None:
    """Of numbered documents: what is held out is the same with both splits, and never seen by recipes."""
    folder = expert(tmp_path / "e", seed=1)
    file = str(text_file(tmp_path / "t.jsonl", *(f"{number:03}" for number in range(200))))
    parts = {}
    splits: tuple[Split, ...] = ("heldout", "tuning")
    for split in splits:
        result = read_texts("law", Sources(folder, [file]), Cut(), split)
        scored, tuning = ({tuple(window.tokens.ids) for window in cut} for cut in (result.held_out, result.tuning))
        parts[split] = [scored, {*map(tuple, result.statistics)}, tuning]
        assert all(one.isdisjoint(other) for one, other in combinations(parts[split], 2))
        assert min(map(len, parts[split])) >= 10
    assert parts["tuning"][0] == parts["heldout"][2]
    assert all(parts["heldout"][0].isdisjoint(part) for part in parts["tuning"])


def test_tuning_files_are_scored_in_place_of_held_out_ones(tmp_path: Path) -> None:
    folder = expert(tmp_path / "e", seed=1)
    text, held, tuning = (
        str(text_file(tmp_path / f"{name}.jsonl", *(f"{name}{number}" for number in range(10)))) for name in "abc"
    )
    sources = Sources(folder, [text], [held], tuning=[tuning])
    scored: dict[Split, str] = {"heldout": "b", "tuning": "c"}
    for split, name in scored.items():
        result = read_texts("law", sources, Cut(), split)
        assert {window.tokens.ids[0] for window in result.held_out} == {tokenizer()(name)["input_ids"][0]}
        assert len(result.tuning) == (10 if split == "heldout" else 1)


def test_switched_windows_score_only_the_second_half(tmp_path: Path) -> None:
    tokens = {"law": 100, "art": 200, "sea": 300}
    domains = {
        name: Texts(tmp_path, cut, tuning=cut[:2])
        for name, first in tokens.items()
        for cut in [windows([Tokens([*range(first, first + 44)]), Tokens([first] * 3)], 16, 8)]
    }
    result = switched(domains, Cut(16, 8, 20))
    for name, first in tokens.items():
        scored = [window.tokens.ids[8:] for window in result[name].held_out]
        assert all(window.predicts == [False] * 7 + [True] * 8 + [False] for window in result[name].held_out)
        assert len(scored) == 3
        assert (len(result[name].tuning), result[name].tuning[0]) == (2, result[name].held_out[0])
        assert all(first <= token < first + 44 for ids in scored for token in ids)
        before = [window.tokens.ids[0] // 100 for window in result[name].held_out]
        others = [other // 100 for item, other in tokens.items() if item != name]
        assert before == [*others, others[0]]
    with pytest.raises(MoergeError, match="no scored document has 50 tokens"):
        switched(domains, Cut(100, 50, 24))


def test_a_user_scores_tuning_text_behind_switches(tmp_path: Path) -> None:
    options, out = domains_of(tmp_path), tmp_path / "table.json"
    table(**options, recipe=["averaging"], split="tuning", switch=True, context=16, json_file=out)
    result = json.loads(out.read_text())
    assert (result["settings"]["split"], result["settings"]["switch"]) == ("tuning", True)
    assert result["elsewhere"] == {"tokens": 0, "documents": 0}
    assert [band["from"] for band in result["averages"][0]["behind_switch"]["bands"]] == [0]  # of half a context: 8


def test_scores_behind_a_switch_are_by_band() -> None:
    assert edges_of(40) == [0, 8, 16, 32]
    cut = [Window(Tokens([*range(8)]), 4, document) for document in (0, 1, 0)]
    losses = torch.arange(21, dtype=torch.float32).reshape(3, 7)  # of tokens 1 to 7; the last four are scored
    bands = Bands([0, 2])
    bands.add(cut, losses)
    first, second = [3 + 4 + 17 + 18, 10 + 11], [5 + 6 + 19 + 20, 12 + 13]
    assert bands.scores() == [
        [Score(first[0], 4), Score(first[1], 2)],
        [Score(second[0], 4), Score(second[1], 2)],
    ]


def test_a_recipe_recovers_from_a_switch_where_all_later_bands_do() -> None:
    def row(name: str, *scores: float) -> Row:
        bands = {"law": [[Score(-math.log(score / 100), 1)] for score in scores]}
        return Row(Run(RECIPES["averaging"], {}, name), name, [Result({"law": [Score(0, 1)]}, 1, 1, bands=bands)])

    rows = [row("law expert", 100, 100, 100), row("one", 95.5, 90, 96), row("two", 90, 99, 94)]
    table = Table(["law"], rows, edges=(0, 8, 16))
    assert [figure.mean for figure in table.bands(rows[1])] == pytest.approx([95.5, 90, 96])
    assert [table.recovers(item) for item in rows] == [0, 16, None]


def test_models_are_compared_on_text_of_no_domain(tmp_path: Path) -> None:
    base = expert(tmp_path / "base", seed=5)
    inputs = read(Given(**domains_of(tmp_path), base=str(base), context=16))
    runs = with_experts(["averaging", "oracle"], inputs.sources, base)
    other = [str(text_file(tmp_path / "x.jsonl", *map(str, range(100, 130))))]
    windows = read_elsewhere(tmp_path / "e0", other, inputs.cut)
    measured = measure(runs, inputs.texts(), inputs.settings, LogProgress(), windows)
    result: Any = replace(measured, against="d0 expert").to_json()
    assert result["elsewhere"]["documents"] == 27
    by = {item["row"]: item for item in result["averages"]}
    own, compared = by["d0 expert"]["elsewhere"], by["averaging"]["elsewhere"]
    assert own.keys().isdisjoint({"difference"})
    assert compared["difference"] == pytest.approx(compared["score"] - own["score"])
    assert 0 < compared["difference_error"] < compared["error"] + own["error"]
    assert by["averaging"]["difference_error"] > 0
    assert "elsewhere" not in by["oracle"]


def test_a_user_compares_specialists_with_the_seed_model(tmp_path: Path) -> None:
    """The last column is of the domains' own text, which a recipe without a model for it leaves empty."""
    options, out, drawn = domains_of(tmp_path), tmp_path / "table.json", tmp_path / "table.svg"
    expert(tmp_path / "base", seed=5)
    other = [text_file(tmp_path / f"o{slot}.jsonl", *(f"{slot} {n}" * 9 for n in range(40))) for slot in range(2)]
    options |= {"base": str(tmp_path / "base")}
    options |= {"context": 16, "tokens": 200, "json_file": out, "svg": drawn}
    with pytest.raises(MoergeError, match="makes a model for each scored text"):
        table(**options, recipe=["soup"])
    trained = "clusters=2,train=128,batch=2"
    options["other"] = [f"d{slot}={file}" for slot, file in enumerate(other)]
    table("soups", **options, recipe=["averaging", f"soup:{trained}", f"crisp:{trained}", "generic:train=128"])
    result = json.loads(out.read_text())
    by = {item["row"]: item for item in result["averages"]}
    assert [*by] == ["seed", "averaging", "soup:clusters=2,train=128,batch=2", f"crisp:{trained}", "generic:train=128"]
    assert {item["score"] for item in result["records"] if item["row"] == "seed"} == {100}
    assert [*by.values()][2]["generic"]["score"] > 0
    assert ["generic" in item for item in by.values()] == [True, True, True, False, True]
    assert "100 is the seed model" in drawn.read_text()


def test_scored_windows_are_spread_evenly_over_documents() -> None:
    """A quarter of all windows, so of a document's eight none with the chance 0.75^8 = 0.1."""
    cut = windows([Tokens(list(range(1150))) for _ in range(100)], 256, 128)
    chosen = spread(cut, 28_725)
    assert sum(window.scored for window in chosen) == pytest.approx(28_725, abs=255)
    assert len({window.document for window in chosen}) >= 80
    assert sum(window.new == 255 for window in chosen) == pytest.approx(25, abs=12)
    assert [window for window in cut if window in chosen] == chosen
    assert spread(cut, 10**6) == cut


def test_empty_statistics_or_held_out_text_is_refused(tmp_path: Path) -> None:
    folder, file = expert(tmp_path / "e", seed=1), str(text_file(tmp_path / "t.jsonl", "the same text"))
    with pytest.raises(MoergeError, match="all text is held out") as caught:
        read_texts("law", Sources(folder, [file], [file]), Cut())
    assert caught.value.where == "`text` law"
    kept = next(text for text in map(str, range(100, 200)) if not is_held_out(text))
    with pytest.raises(MoergeError, match="no document of two tokens is held out"):
        read_texts("law", Sources(folder, [str(text_file(tmp_path / "k.jsonl", kept))]), Cut())


def test_sweep_measures_each_value_for_recipes_with_the_option(tmp_path: Path) -> None:
    options, out, drawn = domains_of(tmp_path), tmp_path / "table.json", tmp_path / "table.svg"
    table(**options, recipe=["dume", "oracle"], sweep="k=1,2", tokens=50, json_file=out, svg=drawn)
    assert {row for row, _ in records(out)} == {"d0 expert", "d1 expert", "dume", "dume:k=2"}
    assert drawn.read_text().count("<polyline") == 1


def test_possible_recipes_are_measured_and_others_are_named(
    tmp_path: Path,
) -> None:
    sources = {"d0": Sources(tmp_path, ["text"])}
    said: list[str] = []
    names = [run.label for run in possible(sources, None, said.append)]
    assert names[0] == "experts"
    assert {"averaging", "dume", "regmean", "oracle", "random"} <= set(names)
    assert not {"ties", "dume-ties", "dume-ood"} & set(names)
    assert any("`base`" in line and "dume-ties" in line for line in said)
    assert any("`preset`" in line and "dume-ood" in line for line in said)
    every = [run.label for run in possible({"d0": Sources(tmp_path, ["t"], other=["o"])}, tmp_path, said.append)]
    assert every == [name for name, recipe in RECIPES.items() if not recipe.asked_only]


def test_experts_may_differ_in_architecture_not_in_tokenizer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options, out = domains_of(tmp_path), tmp_path / "table.json"
    wide = expert(tmp_path / "wide", 5, "qwen2", hidden_size=48, num_hidden_layers=2)
    other = expert(tmp_path / "other", 5)
    changed = json.loads((other / "tokenizer.json").read_text())
    changed["model"]["vocab"] |= {"a": 98, "b": 97}
    (other / "tokenizer.json").write_text(json.dumps(changed))

    def of(folder: Path, *recipes: str) -> dict[str, Any]:
        return {**options, "expert": [options["expert"][0], f"d1={folder}"], "recipe": recipes, "context": 16}

    table(**of(wide), tokens=40)
    said = " ".join(capsys.readouterr().out.split())
    assert "Left out because d1 differs from the other experts: model_type is 'qwen2', not 'llama': averaging," in said
    table(**of(wide, "btm", "mergeme-heterogeneous:train=64,batch=2"), tokens=40, json_file=out)
    rows = ["d0 expert", "d1 expert", "btm", "mergeme-heterogeneous:train=64,batch=2"]
    assert list(dict.fromkeys(row for row, _ in records(out))) == rows
    with pytest.raises(MoergeError, match="needs experts of one architecture, but d1 differs") as refused:
        table(**of(wide, "btm", "dume"))
    assert refused.value.where == "--recipe dume"
    assert "mergeme-heterogeneous" in refused.value.todo
    with pytest.raises(
        MoergeError, match=r"than the other experts: .*, so their perplexities per token can't be compared"
    ):
        table(**of(other, "btm"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"recipe": ["dumme"]}, "did you mean dume"),
        ({"recipe": ["ties"]}, "needs --base"),
        ({"recipe": ["dume-ood"]}, "needs --preset"),
        ({"text": []}, "no text is given"),
        ({"text": ["d0"]}, "expected NAME=PATH, found 'd0'"),
        ({"text": ["d0=x", "d2=x"]}, "names differ: d0, d2, but d0, d1 by --expert"),
        ({"expert": ["d0=.", "d0=.", "d1=."]}, "'d0' is given 2 times"),
        ({"text": ["d0=/nowhere", "d1=/nowhere"]}, "--text /nowhere: no file matches"),
        ({"recipe": ["dume"], "sweep": "q=1,2"}, "no recipe has the option 'q'"),
        ({"recipe": ["dume"], "sweep": "k=1,two"}, "expected OPTION=NUMBER,NUMBER"),
        ({"against": "ties"}, "name one of: d0 expert, d1 expert, averaging"),
        ({"preset": "small"}, "--expert: a preset has its own experts, texts and base"),
    ],
)
def test_unsuitable_options_are_refused_before_the_work(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    options = {"expert": [f"d{slot}={tmp_path}" for slot in range(2)], "text": [f"d{slot}=x" for slot in range(2)]}
    with pytest.raises(MoergeError) as caught:
        table(**{**options, "recipe": ["averaging"], **change})
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("other", "said"),
    [([], "--other: no text to specialise on"), (["d0=x"], "names differ: d0, but d0, d1 by --expert")],
)
def test_soups_need_other_text_of_every_domain(tmp_path: Path, other: list[str], said: str) -> None:
    options = {"expert": [f"d{slot}={tmp_path}" for slot in range(2)], "text": [f"d{slot}=x" for slot in range(2)]}
    with pytest.raises(MoergeError) as caught:
        table("soups", **options, other=other)
    assert said in str(caught.value)


def test_options_before_a_subcommand_are_refused() -> None:
    with pytest.raises(MoergeError, match="--preset: has no effect here"):
        table("--preset", "small", "version", "v1")


def test_line_separators_within_a_text_end_no_document(tmp_path: Path) -> None:
    """JSON leaves U+2028, U+2029 and U+0085 as they are; only a newline ends a line of JSON Lines."""
    folder = expert(tmp_path / "expert", seed=1)
    version = version_of([folder], tmp_path)
    text = text_file(tmp_path / "text.jsonl", "one\u2028two\u2029three\u0085four")
    table("version", version, expert=[f"d0={folder}"], held_out=[f"d0={text}"], context=64)


def test_a_text_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    folder = expert(tmp_path / "expert", seed=1)
    version = version_of([folder], tmp_path)
    text = tmp_path / "text.jsonl"
    text.write_bytes(b'{"text": "fine"}\n{"text": "\xff"}\n')
    with pytest.raises(MoergeError) as caught:
        table("version", version, expert=[f"d0={folder}"], held_out=[f"d0={text}"])
    assert str(text) in caught.value.where


def test_experts_that_are_not_the_version_s_are_refused(tmp_path: Path) -> None:
    folder = expert(tmp_path / "expert", seed=1)
    version = version_of([folder], tmp_path)
    text = text_file(tmp_path / "text.jsonl", "text")
    with pytest.raises(MoergeError, match="expected d0, found d1"):
        table("version", version, expert=[f"d1={folder}"], held_out=[f"d1={text}"])
    with pytest.raises(MoergeError, match=r"has no version's moerge.json") as caught:
        table("version", folder, expert=[f"d0={folder}"], held_out=[f"d0={text}"])
    assert caught.value.where == str(folder)


@pytest.mark.parametrize("tied", [(True, False), (False, True)])
def test_average_of_tied_and_untied_uses_embedding_as_head(tmp_path: Path, tied: tuple[bool, bool]) -> None:
    folders = [expert(tmp_path / f"e{i}", seed=i, tie_word_embeddings=tie) for i, tie in enumerate(tied)]
    cut = windows([Tokens(ROWS[0])], 32, 16)
    domains = {f"d{slot}": Texts(folder, cut) for slot, folder in enumerate(folders)}
    runs = [Run(*parse(name)) for name in ("experts", "averaging")]
    result = measure(runs, domains, Settings(), LogProgress())
    one, two = (AutoModelForCausalLM.from_pretrained(folder).state_dict() for folder in folders)
    mean = AutoModelForCausalLM.from_pretrained(folders[tied.index(False)])
    mean.load_state_dict({name: (one[name] + two[name]) / 2 for name in one})
    [averaging] = result.row("averaging").results
    assert total(averaging.documents["d0"]).nll == pytest.approx(score(mean, cut, Silent()).nll, rel=1e-5)
