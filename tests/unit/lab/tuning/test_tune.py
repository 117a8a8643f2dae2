"""`moerge tune`: refusals, the folder that it writes, and a killed run that continues."""

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from moerge.cli.app import app
from moerge.errors import MoergeError
from moerge.models.families.mellum import LINEAR
from moerge.models.families.registry import FAMILIES
from moerge.models.reader import Checkpoint
from moerge.progress import NoProgress
from moerge.settings import token_count
from moerge_lab.training.job import LOG, Process
from moerge_lab.tuning.request import Request, Wanted
from moerge_lab.tuning.train_process import Done, train_process
from moerge_lab.tuning.tune import write_rows, write_tuned
from moerge_lab.tuning.version import read_version
from moerge_proto.records import TunedModel, read_record
from moerge_proto.versions import Lineage
from support.models import DISTINCT, expert, texts
from support.processes import run_command
from support.versions import loaded, published

CONTEXT = 32
KILLED = """
import os, signal
from moerge.cli import app
from moerge_lab.tuning import tune

def killed(request, work, address, finished):
    def until(steps):
        if steps >= 20:
            os.kill(os.getpid(), signal.SIGKILL)
    whole(request, work, address, until)

whole, tune.train_on_ray = tune.train_on_ray, killed
app.main()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The version of two experts with k = 2, and a text of each domain."""
    made = tmp_path_factory.mktemp("tuning")
    published([expert(made / f"expert-{slot}", slot + 1, apart=0.02) for slot in range(2)], made, top_k=2)
    for slot in range(2):
        texts(made / f"d{slot}.jsonl", slot, 60)
    return made


def command(folder: Path, out: Path, recipe: str = "dume-plus:batch=2", tokens: str = "640", *more: str) -> list[str]:
    given = [f"--text=d{slot}={folder / f'd{slot}.jsonl'}" for slot in range(2)]
    named = ["--recipe", recipe, "--tokens", tokens, "--context", str(CONTEXT), "--out", str(out)]
    return ["tune", str(folder / "version"), *given, *named, *more]


def request(folder: Path, recipe: str) -> Request:
    files = {f"d{slot}": [str(folder / f"d{slot}.jsonl")] for slot in range(2)}
    wanted = Wanted(recipe, files, 4 * 2 * CONTEXT, {"d1": 3.0}, context=CONTEXT)
    return read_version(folder / "version", wanted, NoProgress())


def finished(asked: Request, work: Path) -> Done:
    write_rows(asked, work)
    train_process(asked, work, Process())
    done = Done.read(work)
    assert done is not None
    return done


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    own = Checkpoint(folder)
    return {name: own.tensor(name) for name in own.specs}


def losses(log: Path) -> list[str]:
    return [line.split(",")[2] for line in log.read_text().splitlines()[1:]]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (["--recipe", "dume"], "dume doesn't train a version"),
        (["--recipe", "seed-continued"], "use one of: dume-plus, dume-plus-gate, btx-gate, btx-router, btx"),
        (["--recipe", "upcycling"], "upcycling doesn't train a version"),
        (["--recipe", "btx:start=ridge,seed=1"], "seed, start can't be chosen here"),
        (["--recipe", "btx:train=10"], "train can't be chosen here"),
        (["--recipe", "btx:rate=0"], "expected a rate above 0"),
        (["--tokens", "many"], "write 250k or 1M"),
        (["--weight", "art=2"], "--weight: the version has no domain art"),
        (["--weight", "d0=0"], "expected a number above 0, found 0"),
        (["--text", "art=x.jsonl"], "--text: the version has no domain art"),
        (["--context", "512"], "expected at most 256, the version's context, found 512"),
        (["--workers", "3"], "a batch of 2 rows can't be divided among 3 processes"),
        (["--accumulate", "3"], "a process has 2 rows of a batch, fewer than 3 parts"),
    ],
)
def test_an_unsuitable_option_is_refused_with_the_remedy(
    folder: Path, tmp_path: Path, changed: list[str], said: str
) -> None:
    ended = CliRunner().invoke(app, [*command(folder, tmp_path / "out"), *changed])
    assert said in str(ended.exception)
    assert list(tmp_path.iterdir()) == []


def test_invalid_folder_missing_text_and_used_output_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    line = command(folder, tmp_path)
    assert "the folder is not empty" in str(CliRunner().invoke(app, line).exception)
    line = [item for item in command(folder, tmp_path / "out") if not item.startswith("--text=d1")]
    assert "no text of d1" in str(CliRunner().invoke(app, line).exception)
    line = command(folder, tmp_path / "out")
    line[1] = str(folder / "expert-0")
    assert "written by moerge pull or moerge merge" in str(CliRunner().invoke(app, line).exception)


WITHOUT_PANDAS = """
import sys
from moerge.cli.app import main
sys.modules["pandas"] = None  # which Ray Train needs
main()
"""


def test_a_missing_package_of_ray_is_an_extra_s(folder: Path, tmp_path: Path) -> None:
    done = run_command(*command(folder, tmp_path / "out"), script=WITHOUT_PANDAS)
    assert done.returncode == 1
    assert "error: moerge tune: needs pandas\n" in done.stderr
    assert "pip install 'moerge[lab]'" in done.stderr


@pytest.mark.parametrize(
    ("typed", "tokens"), [("250000", 250_000), ("250k", 250_000), ("1M", 10**6), ("1.5m", 1_500_000)]
)
def test_a_number_of_tokens_may_have_a_prefix(typed: str, tokens: int) -> None:
    assert token_count(typed) == tokens


@pytest.mark.parametrize(
    ("recipe", "trained", "top_k"),
    [
        ("dume-plus:batch=2", ("gate.weight",), 1),
        ("dume-plus-gate:batch=2,routing=top2", ("gate.weight", "w1.weight"), 2),
        ("btx:batch=2,routing=soft", ("weight",), 2),
    ],
)
def test_only_the_recipe_s_parameters_differ_from_the_parent_s(
    folder: Path, tmp_path: Path, recipe: str, trained: tuple[str, ...], top_k: int
) -> None:
    asked, out = request(folder, recipe), tmp_path / "out"
    done = finished(asked, tmp_path)
    write_tuned(asked, tmp_path, done, out, NoProgress())
    before, after = tensors(folder / "version"), tensors(out)
    differ = {name for name in before if not torch.equal(before[name], after[name])}
    assert differ == {name for name in before if name.endswith(trained)}
    assert done.parameters == sum(before[name].numel() for name in differ)
    model: Any = loaded(out)
    assert model.config.num_experts_per_tok == top_k
    assert model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=2).shape == (1, 5)
    made = read_record(out)
    assert isinstance(made, TunedModel)
    assert made == asked.record
    assert made.parent == Lineage.model_validate_json((folder / "version" / "moerge.json").read_text())
    card = (out / "README.md").read_text()
    assert all(digest in card for digest in [*made.texts.values(), made.parent.body])
    assert "pooled text" in card
    assert card.startswith("---\nlibrary_name: transformers\nlicense: ")
    assert len(losses(out / LOG)) == 4
    again = CliRunner().invoke(
        app, [*command(folder, tmp_path / "other")[:1], str(out), *command(folder, tmp_path / "other")[2:]]
    )
    assert "is a tuned model" in str(again.exception)


@pytest.mark.parametrize("family", DISTINCT)
def test_tuned_tensors_have_the_published_names_and_dtypes(tmp_path: Path, family: str) -> None:
    for slot in range(2):
        AutoModelForCausalLM.from_pretrained(
            expert(tmp_path / f"expert-{slot}", slot + 1, family), dtype=torch.bfloat16
        ).save_pretrained(tmp_path / f"expert-{slot}")
        texts(tmp_path / f"d{slot}.jsonl", slot, 20)
    parent = published([tmp_path / "expert-0", tmp_path / "expert-1"], tmp_path)
    if linear := FAMILIES[family].fixed.get(LINEAR):
        with pytest.raises(MoergeError, match="train routers or gates only"):
            request(tmp_path, "btx:batch=1")
    asked, out = request(tmp_path, "btx-gate:batch=1" if linear else "btx:batch=1"), tmp_path / "out"
    model = asked.build()
    asked = replace(asked, build=lambda: model)
    write_tuned(asked, tmp_path, finished(asked, tmp_path), out, NoProgress())
    tuned, start = Checkpoint(out), Checkpoint(parent)
    assert {name: (spec.shape, spec.dtype) for name, spec in tuned.specs.items()} == {
        name: (spec.shape, spec.dtype) for name, spec in start.specs.items()
    }
    named = dict(loaded(out).named_parameters())
    assert all(torch.equal(named[name], parameter.float()) for name, parameter in model.named_parameters())


@pytest.mark.slow
def test_a_killed_run_continues_to_the_same_losses(folder: Path, tmp_path: Path) -> None:
    """The commands run a local Ray; nothing of it or of the work stays."""
    tokens = str(300 * 2 * CONTEXT)
    whole = run_command(*command(folder, tmp_path / "whole", "btx:batch=2", tokens))
    assert whole.returncode == 0, whole.stderr
    assert "on 19,200 tokens; loss" in whole.stdout
    killed = run_command(*command(folder, tmp_path / "cut", "btx:batch=2", tokens), script=KILLED)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not list((tmp_path / "cut.work").glob("*/trained.json"))
    again = run_command(*command(folder, tmp_path / "cut", "btx:batch=2", tokens))
    assert again.returncode == 0, again.stderr
    assert losses(tmp_path / "cut" / LOG) == losses(tmp_path / "whole" / LOG)
    assert {path.name for path in tmp_path.iterdir()} == {"whole", "cut"}


@pytest.mark.slow
def test_two_processes_train_like_one_and_result_is_scored(folder: Path, tmp_path: Path) -> None:
    asked = request(folder, "dume-plus:batch=2")
    finished(asked, tmp_path)
    done = run_command(*command(folder, tmp_path / "two", "dume-plus:batch=2", "256", "--weight=d1=3", "--workers=2"))
    assert done.returncode == 0, done.stderr
    alone, together = ([float(loss) for loss in losses(path)] for path in (tmp_path / LOG, tmp_path / "two" / LOG))
    assert together == pytest.approx(alone, abs=1e-5)
    given = [f"--expert=d{slot}={folder / f'expert-{slot}'}" for slot in range(2)]
    given += [f"--text=d{slot}={folder / f'd{slot}.jsonl'}" for slot in range(2)]
    table = run_command("table", "version", tmp_path / "two", *given, "--recipe", "averaging", "--context", "32")
    assert table.returncode == 0, table.stderr
    assert "version" in table.stdout
