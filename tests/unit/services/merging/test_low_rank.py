"""A merge of experts of low rank is the merge of these experts as checkpoints; scores compare with the whole ones."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moerge.documents.corpus import Corpus
from moerge.errors import MoergeError
from moerge.experts.low_rank import low_rank_expert
from moerge.files import file_sha256
from moerge.merging.merge import MergeSettings, Source, merge
from moerge.models.expert_folder import DenseExpert
from moerge.models.reader import Checkpoint
from moerge.progress import NoProgress
from moerge_proto.options import PAPER, VersionRecipe
from support.models import expert, texts
from support.processes import run_command

SMALL: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
SETTINGS = MergeSettings(recipe=PAPER, scored_tokens=0)
NAMES = ("law", "art")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("merging")
    expert(made / "base", 0, **SMALL)
    for seed, domain in enumerate(NAMES, 1):
        expert(made / domain, seed, **SMALL)
        texts(made / f"{domain}.jsonl", seed, documents=60)
    return made


@pytest.fixture(scope="module")
def base(folder: Path) -> DenseExpert:
    return DenseExpert("base", folder / "base")


def sources(folder: Path) -> list[Source]:
    return [
        Source(DenseExpert(name, folder / name), Corpus([str(folder / f"{name}.jsonl")], folder / name))
        for name in NAMES
    ]


def files(folder: Path) -> dict[str, str]:
    return {path.name: file_sha256(path) for path in folder.iterdir()}


def merged(given: Sequence[Source], out: Path, settings: MergeSettings) -> dict[str, str]:
    merge(given, out, settings)
    return files(out)


def test_the_version_is_that_of_the_reduced_checkpoints_byte_for_byte(
    folder: Path, base: DenseExpert, tmp_path: Path
) -> None:
    asked = replace(SETTINGS, base=base, expert_rank=2)
    found = merged(sources(folder), tmp_path / "out", asked)
    reduced = [low_rank_expert(each.expert, base, 2, tmp_path, NoProgress()).folder for each in sources(folder)]
    given = [
        replace(each, expert=DenseExpert(each.expert.domain, made))
        for each, made in zip(sources(folder), reduced, strict=True)
    ]
    assert merged(given, tmp_path / "given", SETTINGS) == found
    card = (tmp_path / "out" / "README.md").read_text()
    assert "| MLPs | base + rank-2 delta: law, art |" in card
    assert f"of the expert `{sources(folder)[0].expert.digest}` and the base `{base.digest}`" in card
    assert not list((tmp_path / "out.work").glob("low-rank-*"))


def test_the_command_s_version_is_the_library_s(folder: Path, base: DenseExpert, tmp_path: Path) -> None:
    found = merged(sources(folder), tmp_path / "library", replace(SETTINGS, base=base, expert_rank=3))
    pairs = [
        f"--{option}={name}={folder / name}{end}"
        for name in NAMES
        for option, end in (("expert", ""), ("text", ".jsonl"))
    ]
    more = ["--recipe=dume", "--expert-rank=3", f"--base={base.folder}", "--scored-tokens=0"]
    done = run_command("merge", *pairs, *more, f"--out={tmp_path / 'out'}")
    assert done.returncode == 0, done.stderr
    assert "reducing MLPs of law to rank 3: 100 %" in done.stderr
    assert files(tmp_path / "out") == found


def test_scores_are_relative_to_the_whole_experts(folder: Path, base: DenseExpert, tmp_path: Path) -> None:
    scored = replace(SETTINGS, scored_tokens=200)
    whole = merge(sources(folder), tmp_path / "whole", scored)
    reduced = merge(sources(folder), tmp_path / "reduced", replace(scored, base=base, expert_rank=1))
    for one, two in zip(whole.scores, reduced.scores, strict=True):
        assert one is not None
        assert two is not None
        assert one.expert == two.expert
        assert one.version != two.version


def test_a_rank_that_saves_nothing_gives_the_same_weights(folder: Path, base: DenseExpert, tmp_path: Path) -> None:
    said: list[str] = []
    for name, settings in (("plain", SETTINGS), ("full", replace(SETTINGS, base=base, expert_rank=10))):
        merge(sources(folder), tmp_path / name, settings, said.append)
    assert [line for line in said if "rank" in line] == [
        f"{name}: the expert's MLPs are unchanged by rank 10" for name in NAMES
    ]
    one, two = Checkpoint(tmp_path / "plain"), Checkpoint(tmp_path / "full")
    assert one.specs.keys() == two.specs.keys()
    assert all(one.tensor(name).equal(two.tensor(name)) for name in one.specs)
    assert "| MLPs | the experts' own, unchanged |" in (tmp_path / "full" / "README.md").read_text()


def test_the_base_of_a_trunk_method_is_that_of_the_rank(folder: Path, base: DenseExpert, tmp_path: Path) -> None:
    recipe = PAPER.model_copy(update={"method": "base"})
    merge(sources(folder), tmp_path / "out", replace(SETTINGS, recipe=recipe, base=base, expert_rank="auto"))
    made, start = Checkpoint(tmp_path / "out"), Checkpoint(folder / "base")
    name = "model.layers.0.self_attn.q_proj.weight"
    assert made.tensor(name).equal(start.tensor(name))


def test_a_base_of_another_architecture_is_named(folder: Path, tmp_path: Path) -> None:
    other = DenseExpert("base", expert(tmp_path / "base", 0, family="qwen2", **SMALL))
    with pytest.raises(MoergeError, match=r"expert of 'base' differs .* is 'qwen2', not 'llama'"):
        merge(sources(folder), tmp_path / "out", replace(SETTINGS, base=other, expert_rank=2))


@pytest.mark.parametrize(
    ("fit", "based", "found"), [(False, False, "needs the base model"), (True, True, "--fit solves whole MLPs anew")]
)
def test_a_rank_without_a_base_or_with_a_fit_is_refused(
    folder: Path, base: DenseExpert, tmp_path: Path, fit: bool, based: bool, found: str
) -> None:
    recipe = VersionRecipe(method="moerge" if fit else "average", fit=fit, solve=PAPER.solve)
    asked = replace(SETTINGS, recipe=recipe, base=base if based else None, expert_rank=2)
    with pytest.raises(MoergeError, match=found) as caught:
        merge(sources(folder), tmp_path / "out", asked)
    assert (caught.value.where, bool(caught.value.todo)) == ("--expert-rank", True)
    assert list(tmp_path.iterdir()) == []
