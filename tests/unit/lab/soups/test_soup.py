"""`moerge soup`: banks and specialists as folders, an interrupted training, and refusals."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from moerge.cli.app import app
from moerge.errors import MoergeError
from moerge.files import file_sha256, work_folder
from moerge.progress import NoProgress
from moerge_lab.soups.folder import BANK_FILE, read_bank
from moerge_lab.soups.run import Settings, read_request, train_bank
from moerge_lab.soups.training import put
from moerge_lab.training import checkpoint
from moerge_lab.training.job import LOG
from moerge_proto.records import SoupBank, Specialist
from support.models import adapter, expert, texts


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A seed model, experts and texts of two names, a target, and a bank."""
    made = tmp_path_factory.mktemp("soup")
    for number, name in enumerate(("seed", "art", "law")):
        expert(made / name, number, apart=0.02 * bool(number))
        texts(made / f"{name}.jsonl", number, 60)
    done = CliRunner().invoke(app, command(made, made / "bank"))
    assert done.exit_code == 0, done.exception
    assert "trained on 1,280 tokens; loss" in done.output
    return made


def command(folder: Path, out: Path, *more: str) -> list[str]:
    experts = [f"--expert={name}={folder / name}" for name in ("art", "law")]
    files = [f"--text={name}={folder / f'{name}.jsonl'}" for name in ("art", "law")]
    settings = ["--base", str(folder / "seed"), "--tokens=1.3k", "--batch=4", "--context=32", "--clusters=3"]
    return ["soup", "train", *experts, *files, *settings, "--rate=0.001", "--out", str(out), *more]


def instantiated(folder: Path, out: Path, *more: str) -> Specialist:
    given = ["soup", "instantiate", str(folder / "bank"), f"--text={folder / 'seed.jsonl'}", "--out", str(out), *more]
    done = CliRunner().invoke(app, given)
    assert done.exit_code == 0, done.exception
    return Specialist.model_validate_json((out / "moerge.json").read_bytes())


def digests(folder: Path) -> dict[str, str]:
    """Name -> SHA-256 of all files but the log, which has times."""
    return {str(path.relative_to(folder)): file_sha256(path) for path in folder.rglob("*") if path.is_file()} | {
        LOG: ""
    }


def test_a_bank_names_its_inputs_and_is_no_model(folder: Path) -> None:
    made = SoupBank.model_validate_json((folder / "bank" / "moerge.json").read_bytes())
    assert (made.start, made.parts, made.tokens) == ("experts", 2, 1280)
    card = (folder / "bank" / "README.md").read_text()
    assert "pooled text" in card
    assert len((folder / "bank" / LOG).read_text().splitlines()) == 11
    assert [*made.texts] == [*made.experts] == ["art", "law"]
    with pytest.raises(ValueError, match="Unrecognized model"):
        AutoModelForCausalLM.from_pretrained(folder / "bank")


def test_specialist_is_a_stock_model_with_its_parameters(folder: Path, tmp_path: Path) -> None:
    made, opened = instantiated(folder, tmp_path / "sp"), read_bank(folder / "bank")
    assert sum(made.weights) == pytest.approx(1)
    alpha = opened.bank.alpha(torch.tensor(made.weights))
    torch.testing.assert_close(torch.tensor(made.coefficients), alpha)
    put(opened.model, opened.bank.instantiate(torch.tensor(made.coefficients)))
    stock: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "sp")
    assert type(stock).__name__ == "LlamaForCausalLM"
    ids = AutoTokenizer.from_pretrained(tmp_path / "sp")("abcabc", return_tensors="pt")["input_ids"]
    functional: Any = opened.model
    one, other = (item.generate(ids, max_new_tokens=8, do_sample=False) for item in (stock, functional))
    assert torch.equal(one, other)
    card = (tmp_path / "sp" / "README.md").read_text()
    assert all(word in card for word in (made.bank_file, made.text, "library_name: transformers", "finetune | 0"))


def test_a_fit_and_a_fine_tuning_are_recorded(folder: Path, tmp_path: Path) -> None:
    before = digests(folder / "bank")
    plain, fit = instantiated(folder, tmp_path / "plain"), instantiated(folder, tmp_path / "fit", "--fit")
    tuned = instantiated(folder, tmp_path / "tuned", "--finetune", "256")
    assert fit.weights == plain.weights == tuned.weights
    assert fit.coefficients != plain.coefficients == tuned.coefficients
    assert (fit.fit, fit.finetune, tuned.finetune) == (True, 0, 256)
    models = [digests(tmp_path / name)["model.safetensors"] for name in ("plain", "fit", "tuned")]
    assert len({*models}) == 3
    assert digests(folder / "bank") == before


def test_a_random_start_and_a_low_rank_give_specialists_too(folder: Path, tmp_path: Path) -> None:
    line = [item for item in command(folder, tmp_path / "bank", "--rank=4", "--start=seed") if "--expert" not in item]
    assert CliRunner().invoke(app, line).exit_code == 0
    (tmp_path / "seed.jsonl").write_bytes((folder / "seed.jsonl").read_bytes())
    assert len(instantiated(tmp_path, tmp_path / "sp").coefficients) == 2
    AutoModelForCausalLM.from_pretrained(tmp_path / "sp")


class Stopped(NoProgress):
    """Ends a training by Ctrl-C in this step; 0: never. `seen` are the tokens that the last work told."""

    def __init__(self, step: int) -> None:
        self._left, self.seen = step, list[int]()

    @contextmanager
    def track(self, title: str, total: int, unit: str) -> Iterator[NoProgress]:
        self.seen.clear()
        yield self

    def advance(self, n: int) -> None:
        self.seen.append(n)
        if self._left and sum(self.seen) == self._left * 4 * 32:
            raise KeyboardInterrupt


def test_an_interrupted_training_continues_to_the_same_bytes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if experts and texts are given in another order."""
    monkeypatch.setattr(checkpoint, "SECONDS", 0)
    settings = Settings("experts", 0, 3, 2, 1e-3, 4, 0)
    files = {name: [str(folder / f"{name}.jsonl")] for name in ("law", "art")}
    experts = {name: folder / name for name in ("law", "art")}
    request = read_request(folder / "seed", experts, files, "text", settings, 1280, 32, "cpu", NoProgress())
    with pytest.raises(KeyboardInterrupt):
        train_bank(request, tmp_path / "bank", Stopped(6))
    assert not (tmp_path / "bank").exists()
    [log] = work_folder(tmp_path / "bank").glob(f"*/{LOG}")
    assert len(log.read_text().splitlines()) == 7
    train_bank(request, tmp_path / "bank", again := Stopped(0))
    assert again.seen[0] > 0, "it begins with the tokens of its checkpoint"
    assert sum(again.seen) == 1280
    assert digests(tmp_path / "bank") == digests(folder / "bank")
    assert [path.name for path in tmp_path.iterdir()] == ["bank"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (["--start=seed"], "--start seed: uses no expert"),
        (["--support=4"], "expected at most 3, the number of clusters, found 4"),
        (["--rate=0"], "expected a number above 0"),
        (["--context=512"], "expected at most 256, the models' context, found 512"),
        (["--tokens=many"], "write 250k or 1M"),
        (["--clusters=1000"], "at least as many documents as clusters"),
        (["--expert=art=/nowhere"], "'art' is given 2 times"),
        (["--rate=1e30"], "is not finite"),
    ],
)
def test_an_unsuitable_option_is_refused_with_the_remedy(
    folder: Path, tmp_path: Path, changed: list[str], said: str
) -> None:
    ended = CliRunner().invoke(app, [*command(folder, tmp_path / "out"), *changed])
    assert said in str(ended.exception)
    assert not (tmp_path / "out").exists()


def test_adapter_as_seed_model_is_refused_before_training(folder: Path, tmp_path: Path) -> None:
    lora = adapter(tmp_path / "lora", folder / "seed", seed=3)
    ended = CliRunner().invoke(app, [*command(folder, tmp_path / "out"), f"--base={lora}"])
    assert "the folder is an adapter" in str(ended.exception)
    assert not list(tmp_path.glob("out*"))


def test_invalid_or_damaged_bank_and_other_experts_are_refused(folder: Path, tmp_path: Path) -> None:
    line = ["soup", "instantiate", str(folder / "art"), f"--text={folder / 'seed.jsonl'}", f"--out={tmp_path / 'out'}"]
    assert "written by moerge soup train" in str(CliRunner().invoke(app, line).exception)
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for name in ("seed", BANK_FILE):
        (damaged / name).symlink_to(folder / "bank" / name)
    record = json.loads((folder / "bank" / "moerge.json").read_text())
    (damaged / "moerge.json").write_text(json.dumps({**record, "parts": 3}))
    with pytest.raises(MoergeError, match=r"expected shape \[3, .*found \[2, "):
        read_bank(damaged)
    expert(tmp_path / "wide", 3, intermediate_size=64)
    ended = CliRunner().invoke(app, command(folder, tmp_path / "out", f"--expert=wide={tmp_path / 'wide'}"))
    assert "wide differs from the other experts" in str(ended.exception)
    assert "the folder is not empty" in str(CliRunner().invoke(app, command(folder, folder / "bank")).exception)
