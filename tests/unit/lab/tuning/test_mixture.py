"""`moerge tune` for mixtures: folders and refusals."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from moerge.cli.app import app
from moerge.models.expert_folder import DenseExpert
from moerge.models.reader import Checkpoint
from moerge.progress import NoProgress
from moerge_lab.mixtures.bts import Bts
from moerge_lab.mixtures.heterogeneous import Heterogeneous
from moerge_lab.training.job import Process
from moerge_lab.tuning.request import Request, Wanted
from moerge_lab.tuning.train_process import Done, train_process
from moerge_lab.tuning.tune import read_request, write_rows, write_tuned
from moerge_proto.records import TunedMixture, read_record
from support.models import expert, texts
from support.versions import published

CONTEXT, STEPS = 32, 4
NAMES = ("d0", "d1", "d2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A seed model and three experts in bfloat16, a float32 expert of another architecture, a version; and texts."""
    made = tmp_path_factory.mktemp("mixtures")
    for slot, name in enumerate(("seed", *NAMES)):
        own = expert(made / name, slot, apart=0.02 if slot else 0)
        AutoModelForCausalLM.from_pretrained(own, dtype=torch.bfloat16).save_pretrained(own)
        texts(made / f"{name}.jsonl", slot, 60)
    expert(made / "other", 9, "qwen2", tokens=["<tool>"], hidden_size=16, num_hidden_layers=4)
    texts(made / "other.jsonl", 9, 60)
    published([made / "d0", made / "d1"], made)
    return made


def request(folder: Path, recipe: str) -> Request:
    """The request for a mixture of seed, d0 and d1."""
    named = {name: [str(folder / f"{name}.jsonl")] for name in ("seed", "d0", "d1")}
    wanted = Wanted(recipe, named, STEPS * 2 * CONTEXT, {"d1": 3.0}, context=CONTEXT)
    places = {name: str(folder / name) for name in ("d0", "d1")}
    return read_request(None, places, str(folder / "seed"), wanted, NoProgress())


def different(folder: Path, recipe: str, base: str | None = None) -> Request:
    """The request for a new mixture of experts that differ in architecture and tokenizer."""
    names = ("d0", "other")
    named = {name: [str(folder / f"{name}.jsonl")] for name in names}
    wanted = Wanted(recipe, named, STEPS * 2 * CONTEXT, {}, context=CONTEXT)
    places = {name: str(folder / name) for name in names}
    return read_request(None, places, base, wanted, NoProgress())


def tuned_by(asked: Request, work: Path) -> Path:
    work.mkdir(exist_ok=True)
    write_rows(asked, work)
    train_process(asked, work, Process())
    done = Done.read(work)
    assert done is not None
    write_tuned(asked, work, done, work / "out", NoProgress())
    return work / "out"


def untrained(asked: Request, folder: Path) -> Path:
    asked.build().to(asked.dtype).save_pretrained(folder / "untrained")  # type: ignore[arg-type]
    return folder / "untrained"


def added(folder: Path) -> set[str]:
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    return set(model.added())


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    own = Checkpoint(folder)
    return {name: own.tensor(name) for name in own.specs}


def differing(before: Path, after: Path) -> set[str]:
    one, other = tensors(before), tensors(after)
    assert one.keys() == other.keys()
    return {name for name in one if not torch.equal(one[name], other[name])}


def generated(folder: Path) -> list[int]:
    model: Any = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    assert AutoTokenizer.from_pretrained(folder).eos_token_id == 257
    result: list[int] = model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=3, do_sample=False)[0].tolist()
    return result


@pytest.mark.parametrize("recipe", ["bts:batch=2,stitches=2", "bam-adapters:batch=2"])
def test_frozen_members_keep_bits_and_need_no_remote_code(folder: Path, tmp_path: Path, recipe: str) -> None:
    asked = request(folder, recipe)
    out = tuned_by(asked, tmp_path)
    assert differing(untrained(asked, tmp_path), out) == added(out)
    assert {tensor.dtype for tensor in tensors(out).values()} == {torch.bfloat16}
    kept = tensors(out)
    for slot, name in enumerate(("seed", "d0", "d1")):
        own = tensors(folder / name)["model.layers.0.self_attn.q_proj.weight"]
        place = f"members.{slot}.self_attn" if recipe.startswith("bts") else f"self_attn.experts.{slot}"
        assert torch.equal(kept[f"stock.model.layers.0.{place}.q_proj.weight"], own)
    assert len(generated(out)) == 6
    made = read_record(out)
    assert isinstance(made, TunedMixture)
    assert made == asked.record
    assert [member.name for member in made.members] == ["seed", "d0", "d1"]
    assert made.members[1].digest == DenseExpert("d0", folder / "d0").digest
    card = (out / "README.md").read_text()
    assert all(
        said in card for said in ("pip install moerge", "import moerge_lab.mixtures", "law 6", "vLLM", "llama.cpp")
    )
    assert "{" not in card
    assert len((out / "training.csv").read_text().splitlines()) == 1 + STEPS


def test_different_architectures_share_the_first_tokenizer(folder: Path, tmp_path: Path) -> None:
    asked = different(folder, "mergeme-heterogeneous:batch=2,frozen=1", str(folder / "seed"))
    out = tuned_by(asked, tmp_path)
    model = AutoModelForCausalLM.from_pretrained(out)
    assert isinstance(model, Heterogeneous)
    assert model.config.members == ["d0", "other", "seed"]
    assert (out / "tokenizer.json").read_bytes() == (folder / "d0" / "tokenizer.json").read_bytes()
    assert differing(untrained(asked, tmp_path), out) == added(out)
    kept = tensors(out)
    assert {item.dtype for item in kept.values()} == {torch.float32}, "which holds bfloat16, too"
    for slot, name in enumerate(model.config.members):
        own = tensors(folder / name)["model.layers.0.mlp.up_proj.weight"]
        assert torch.equal(kept[f"members.{slot}.layers.0.mlp.up_proj.weight"], own.float())
    assert read_record(out) == asked.record
    assert isinstance(asked.record, TunedMixture)
    assert [member.name for member in asked.record.members] == model.config.members
    card = (out / "README.md").read_text()
    assert all(said in card for said in ("library_name: moerge", "import moerge_lab.mixtures", "law 6", "frozen 1"))
    assert len(generated(out)) == 6


@pytest.mark.parametrize("recipe", ["bam:batch=2,rate=0.01", "mergeme-heterogeneous:batch=2,rate=0.01"])
def test_all_parameters_are_trained(folder: Path, tmp_path: Path, recipe: str) -> None:
    asked = request(folder, recipe)
    out = tuned_by(asked, tmp_path)
    assert differing(untrained(asked, tmp_path), out) == tensors(out).keys()


def test_members_are_found_from_another_folder(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's processes have one of their own."""
    monkeypatch.chdir(folder)
    named = {name: [f"{name}.jsonl"] for name in ("d0", "d1")}
    wanted = Wanted("bts:batch=2", named, 64, {}, context=CONTEXT)
    relative = read_request(None, {"d0": "d0", "d1": "d1"}, "seed", wanted, NoProgress())
    monkeypatch.chdir(tmp_path)
    assert isinstance(relative.build(), Bts)


def command(folder: Path, out: Path, recipe: str, *more: str) -> list[str]:
    given = [f"--text={name}={folder / f'{name}.jsonl'}" for name in ("d0", "d1")]
    named = ["--recipe", recipe, "--tokens", "640", "--context", str(CONTEXT), "--out", str(out)]
    return ["tune", *given, *named, *more]


@pytest.mark.parametrize(
    ("recipe", "more", "said"),
    [
        ("bts", [], "needs a seed model and experts"),
        ("bts", ["version"], "bts doesn't train a version"),
        ("bts", ["version", "--base=seed"], "--base: the folder version needs no other model"),
        ("bts", ["version", "--expert=d2=d2"], "--expert: the folder version needs no other model"),
        ("bts", ["--base=seed"], "needs a seed model and experts"),
        ("bts", ["--expert=d0=d0"], "needs a seed model and experts"),
        ("bts", ["--base=seed", "--expert=seed=d0"], "seed is already a member"),
        ("bts", ["--base=seed", "--expert=d0=d0", "--expert=d0=d1"], "'d0' is given 2 times"),
        ("bts", ["--base=seed", "--expert=d0=d0"], "the mixture has no domain d1"),
        ("bts", ["--base=seed", "--expert=d0=d0", "--expert=d1=d1", "--expert=d2=d2"], "no text of d2"),
        ("bts", ["--base=seed", "--expert=d0=d0", "--expert=d1=version"], "an expert must be dense"),
        ("bts:hub=3", ["--base=seed", "--expert=d0=d0", "--expert=d1=d1"], "give an integer between 0 and 2"),
        ("bts:train=10", ["--base=seed", "--expert=d0=d0"], "train can't be chosen here"),
        ("bam:upweight=0", ["--base=seed", "--expert=d0=d0"], "use --tokens and --weight"),
        ("btx", ["--base=seed", "--expert=d0=d0"], "name a version's folder, which btx trains"),
        ("averaging", ["--base=seed", "--expert=d0=d0"], "use one of: bam, bam-adapters, bts, mergeme-heterogeneous"),
        ("bts", ["--base=seed", "--expert=d0=d0", "--expert=d1=other"], "model_type is 'qwen2', not 'llama'"),
        ("mergeme-heterogeneous", ["--base=seed"], "a new mixture needs experts"),
        ("mergeme-heterogeneous:seed=1", ["--expert=d0=d0", "--expert=d1=d1"], "use --tokens and --base"),
        ("mergeme-heterogeneous:k=3", ["--expert=d0=d0", "--expert=d1=d1"], "give an integer between 2 and 2"),
        ("mergeme-heterogeneous:frozen=2", ["--expert=d0=d0", "--expert=d1=d1"], "give an integer between 0 and 1"),
    ],
)
def test_an_unsuitable_argument_is_refused_with_the_remedy(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: str, more: list[str], said: str
) -> None:
    monkeypatch.chdir(folder)
    ended = CliRunner().invoke(app, command(folder, tmp_path / "out", recipe, *more))
    assert said in str(ended.exception)
    assert not (tmp_path / "out").exists()
