"""A dry run checks and tells what the merge takes, and writes nothing."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from moerge.documents.shards import Shard
from moerge.errors import MoergeError
from moerge.merging import dry_run
from moerge.merging.kept_statistics import kept
from moerge.merging.merge import MergeSettings, Source, merge
from moerge.merging.prompts import Prompts
from moerge.statistics.contribution import Computing
from moerge.statistics.streamed import Streamed
from moerge_proto.recipes import PAPER, RECOMMENDED
from support.merging import HIDDEN, SMALL, files, source
from support.models import expert, texts
from support.processes import run_command
from support.wrappers import wrapper

ONE_SHARD = 64 * HIDDEN * 4 * HIDDEN  # bytes of its hidden states
SETTINGS = MergeSettings(scored_tokens=500)
BOTH = [(domain, kind) for kind in ("body", "head", "router") for domain in ("law", "art")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("dry")
    for seed, domain in enumerate(("law", "art", "code"), 1):
        expert(root / domain, seed, **SMALL)
        documents = [f"{seed}{number:03}" * 32 for number in range(90)]  # of one length, without padding
        (root / f"{domain}.jsonl").write_text("".join(json.dumps({"text": document}) + "\n" for document in documents))
    return root


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of shards in each computed window."""
    seen, begin = list[int](), Streamed.begin

    def counting(streamed: Streamed, shards: Sequence[Shard], states: Path | None = None) -> int:
        seen.append(len(shards))
        return begin(streamed, shards, states)

    monkeypatch.setattr(Streamed, "begin", counting)
    return seen


def sources(folder: Path, *domains: str) -> list[Source]:
    return [source(folder, item) for item in domains or ("law", "art")]


def of(costs: dry_run.Costs) -> list[tuple[str, str]]:
    return [(item.domain, item.kind) for item in costs.passes]


@pytest.mark.parametrize("host_memory", [None, 7 * ONE_SHARD // 2])
def test_the_costs_are_those_of_the_merge_that_follows(
    folder: Path, tmp_path: Path, windows: list[int], host_memory: int | None
) -> None:
    settings = replace(SETTINGS, computing=Computing(host_memory=host_memory))
    costs = dry_run.merge(sources(folder), tmp_path / "new" / "out", settings)
    assert list(tmp_path.iterdir()) == []
    assert of(costs) == BOTH
    windows.clear()
    report = merge(sources(folder), tmp_path / "out", settings)
    assert [item.estimate.tokens for item in costs.passes] == [counts.tokens for counts in report.counts] * 3
    total = sum(item.estimate.windows for item in costs.passes)
    assert total == 6 if host_memory is None else total > 12
    assert total <= len(windows) <= total + (0 if host_memory is None else 6)  # a last shard may be larger
    [one] = {item.estimate.read / item.estimate.windows for item in costs.passes}
    assert one == sum(
        spec.bytes for name, spec in sources(folder)[0].expert.checkpoint.specs.items() if ".layers." in name
    )


def test_less_host_memory_costs_more_windows_and_reading(folder: Path, tmp_path: Path) -> None:
    some, most = (
        dry_run.merge(sources(folder), tmp_path / "out", replace(SETTINGS, computing=Computing(host_memory=size)))
        for size in (ONE_SHARD, None)
    )
    for less, more in zip(some.passes, most.passes, strict=True):
        assert less.device == more.device < less.host < more.host
        assert less.estimate.windows > more.estimate.windows == 1
        assert less.estimate.read == less.estimate.windows * more.estimate.read
    with pytest.raises(MoergeError, match="`host_memory` is 1 byte") as raised:
        dry_run.merge(sources(folder), tmp_path / "out", replace(SETTINGS, computing=Computing(host_memory=1)))
    assert "`host_memory` 1MB or more" in raised.value.todo


def test_other_steps_are_those_of_the_recipe(folder: Path, tmp_path: Path) -> None:
    fitted = RECOMMENDED.model_copy(update={"fit": True})
    paper, fit = (
        dry_run.merge(sources(folder), tmp_path / "out", replace(SETTINGS, recipe=recipe)) for recipe in (PAPER, fitted)
    )
    after = ["making the head", "solving the routers"]
    assert (of(paper), list(paper.memory)) == (BOTH[4:], ["merging the body", *after])
    assert (of(fit), list(fit.memory)) == (BOTH, ["merging the body", "fitting MLPs", *after])
    assert min([*paper.memory.values(), *fit.memory.values()]) > 0


def test_an_unsuitable_input_is_refused_as_in_the_merge(folder: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_text("x")
    expert(tmp_path / "odd", 2, **{**SMALL, "rms_norm_eps": 1e-3})
    texts(tmp_path / "odd.jsonl", 2, documents=90)
    for other, result in ((source(folder, "art", short), "tokens"), (source(tmp_path, "odd"), "differs")):
        with pytest.raises(MoergeError, match=result) as raised:
            dry_run.merge([source(folder, "law"), other], tmp_path / "out", SETTINGS)
        with pytest.raises(MoergeError) as expected:
            merge([source(folder, "law"), other], tmp_path / "out", SETTINGS)
        assert str(raised.value) == str(expected.value)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "moerge.json").write_text("mine")
    with pytest.raises(MoergeError, match="not empty"):
        dry_run.merge(sources(folder), tmp_path / "out", SETTINGS)
    assert not (tmp_path / "out.work").exists()


def test_an_addition_has_passes_of_the_new_expert_alone(folder: Path, tmp_path: Path, windows: list[int]) -> None:
    merge(sources(folder), tmp_path / "merged", replace(SETTINGS, keep_statistics=True))
    before, version = files(tmp_path), kept(tmp_path / "merged")
    costs = dry_run.merge(sources(folder, "code"), tmp_path / "out", SETTINGS, version=version)
    steps = ["fitting MLPs", "making the head", "solving the routers"]
    assert (of(costs), list(costs.memory)) == ([("code", "head"), ("code", "router")], steps)
    assert files(tmp_path) == before
    windows.clear()
    merge(sources(folder, "code"), tmp_path / "out", SETTINGS, version=version)
    assert len(windows) == sum(item.estimate.windows for item in costs.passes)
    with pytest.raises(MoergeError, match="is the expert of 'law'"):
        dry_run.merge(
            [replace(item, expert=replace(item.expert, domain="new")) for item in sources(folder, "law")],
            tmp_path / "other",
            SETTINGS,
            version=version,
        )


def test_dry_run_generates_no_texts_and_keeps_interrupted_work(folder: Path, tmp_path: Path) -> None:
    work = tmp_path / "out.work"
    work.mkdir()
    (work / "generated-art.jsonl").write_text("some")
    written = replace(source(folder, "art"), corpus=Prompts(["abc"], 2_000))
    costs = dry_run.merge([source(folder, "law"), written], tmp_path / "out", SETTINGS)
    assert [item.estimate.tokens for item in costs.passes if item.domain == "art"] == [2_000] * 3
    assert costs.memory["writing texts of art"] > 0
    assert any(line.startswith("Unknown: the time to write the text of art") for line in costs.notes)
    assert any(str(work) in line for line in costs.notes)
    assert files(tmp_path) == {"out.work/generated-art.jsonl": files(work)["generated-art.jsonl"]}
    with pytest.raises(MoergeError, match="a prompt is empty"):
        dry_run.merge([source(folder, "law"), replace(written, corpus=Prompts([" "], 9))], tmp_path / "out", SETTINGS)


def test_the_command_prints_the_costs_as_json_or_in_80_columns(folder: Path, tmp_path: Path) -> None:
    given = [
        f"--{option}={name}={folder / name}{end}"
        for name in ("law", "art")
        for option, end in (("expert", ""), ("text", ".jsonl"))
    ]
    done = run_command("merge", *given, f"--out={tmp_path / 'out'}", "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    content = json.loads(done.stdout)
    assert [(item["domain"], item["pass"]) for item in content["passes"]] == BOTH
    for name, total in content["total"].items():
        every = [item[name] for item in content["passes"]]
        assert total == pytest.approx(max(every) if "memory" in name else sum(every))
    assert list(tmp_path.iterdir()) == []
    costs = dry_run.merge(sources(folder), tmp_path / "out", SETTINGS)
    console = Console(width=80, force_terminal=False)
    with console.capture() as shown:
        for part in costs.render():
            console.print(part)
    lines = shown.get().splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith(("│ law ", "│ art ", "│ total ")) for line in lines) == 7


def test_the_first_lines_name_what_is_left_out_of_wrappers(folder: Path, tmp_path: Path) -> None:
    said = list[str]()
    for seed, domain in enumerate(("law", "art")):
        wrapper(tmp_path / domain, "mistral3", seed)
    texts = [source(tmp_path, domain, folder / f"{domain}.jsonl") for domain in ("law", "art")]
    dry_run.merge(texts, tmp_path / "out", SETTINGS, said.append)
    for line, domain in zip(said[:2], ("law", "art"), strict=True):
        assert line.startswith(f"expert of '{domain}': only its text model is read, mistral; left out: projector (4 ")
