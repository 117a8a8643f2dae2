"""An expert that differs from the others, or can't be read, is refused by name, and its domain stays free."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from contract.conftest import House
from safetensors.torch import load_file, save_file
from support.contributions import Party, checked, kept, problem_of, register, upload_expert
from support.models import expert

from moerge.progress import LogProgress
from moerge_proto.experts import ExpertState
from moerge_proto.problems import ProblemType

Made = Callable[..., Party]
INCOMPATIBLE = ProblemType.INCOMPATIBLE_EXPERT


def _settings(**settings: object) -> Callable[[Path], Path]:
    return lambda folder: expert(folder, seed=61, **settings)


def _edited(name: str, edit: Callable[[str], str]) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        expert(folder, seed=62)
        (folder / name).write_text(edit((folder / name).read_text()))
        return folder

    return make


def _weights(edit: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        expert(folder, seed=63)
        tensors = load_file(folder / "model.safetensors")
        edit(tensors)
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        return folder

    return make


def _other_rope(text: str) -> str:
    config = json.loads(text)
    config["rope_parameters"]["rope_theta"] = 5000.0
    return json.dumps(config)


def _other_tokenizer(text: str) -> str:
    tokenizer = json.loads(text)
    vocab = tokenizer["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    return json.dumps(tokenizer)


DIFFERENT: dict[str, tuple[Callable[[Path], Path], str]] = {
    "hidden size": (_settings(hidden_size=64), "hidden_size"),
    "layers": (_settings(num_hidden_layers=2), "num_hidden_layers"),
    "vocabulary": (_settings(vocab_size=301), "vocab_size"),
    "norm eps": (_settings(rms_norm_eps=1e-3), "rms_norm_eps"),
    "activation": (_settings(hidden_act="gelu"), "hidden_act"),
    "rope theta": (_edited("config.json", _other_rope), "rope"),
    "family": (_settings(family="mistral"), "model_type"),
    "attention bias": (_settings(attention_bias=True), "attention_bias"),
    "tokenizer": (_edited("tokenizer.json", _other_tokenizer), "tokenizer: model.vocab"),
    "missing tensor": (_weights(lambda t: t.pop("model.layers.1.mlp.up_proj.weight")), "layers.1.mlp.up_proj"),
    "extra tensor": (_weights(lambda t: t.update(extra=torch.ones(2))), "extra"),
    "tensor's shape": (_weights(lambda t: t.update({"model.norm.weight": torch.ones(31)})), "model.norm.weight"),
    "integer weights": (
        _weights(lambda t: t.update({"model.norm.weight": torch.ones(32, dtype=torch.int32)})),
        "model.norm.weight",
    ),
    "no JSON config": (_edited("config.json", lambda text: text[:-5]), "config.json"),
}


def _message(party: Party, folder: Path) -> dict[str, object]:
    """Uploads the folder's files without looking at them."""
    paths = sorted(folder.iterdir())
    files = {path.name: party.client.upload(path, LogProgress(), title=path.name).sha256 for path in paths}
    return {"domain": party.domain, "files": files}


@pytest.mark.parametrize("case", DIFFERENT)
def test_an_expert_unlike_the_others_is_refused_by_name_and_nothing_of_it_stays(
    house: House, newcomer: Made, tmp_path: Path, case: str
) -> None:
    make, field = DIFFERENT[case]
    party, before = newcomer(), kept(house.home)
    answer = party.post("/v1/experts", _message(party, make(tmp_path / "unlike")))
    assert field in problem_of(answer, INCOMPATIBLE).field
    assert kept(house.home) == before
    assert register(party, expert(tmp_path / "good", seed=64)).state is ExpertState.READY


def _not_finite(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.2.mlp.down_proj.weight"][0, 0] = torch.nan


def test_an_expert_with_a_nan_is_refused_its_files_go_and_a_good_one_takes_its_place(
    house: House, newcomer: Made, tmp_path: Path
) -> None:
    party, before = newcomer(), kept(house.home)
    refused = register(party, _weights(_not_finite)(tmp_path / "nan"))
    assert refused.state is ExpertState.REFUSED
    assert refused.problem is not None
    assert refused.problem.type == INCOMPATIBLE.urn
    assert "model.layers.2.mlp.down_proj.weight" in refused.problem.field
    after = kept(house.home)
    assert (after.files, after.folders) == (before.files, before.folders)
    assert after.rows["holdings"] == before.rows["holdings"]
    good = register(party, expert(tmp_path / "good", seed=65))
    assert good.state is ExpertState.READY
    assert [each.digest for each in party.client.experts()] == [good.digest]


def test_a_refused_expert_is_refused_again_after_another_try(newcomer: Made, tmp_path: Path) -> None:
    party, nan = newcomer(), _weights(_not_finite)(tmp_path / "nan")
    assert register(party, nan).state is ExpertState.REFUSED
    assert register(party, nan).state is ExpertState.REFUSED
    answer = party.post("/v1/experts", _message(party, expert(tmp_path / "unlike", seed=66, hidden_size=64)))
    problem_of(answer, INCOMPATIBLE)
    assert register(party, nan).state is ExpertState.REFUSED


@pytest.mark.parametrize("name", ["../config.json", "a/b", "/etc/passwd", "..", ".hidden", "", "nul\0byte", "x" * 300])
def test_a_file_that_is_no_plain_name_is_refused(house: House, newcomer: Made, tmp_path: Path, name: str) -> None:
    party = newcomer()
    message = upload_expert(party, expert(tmp_path / "expert", seed=67))
    before = kept(house.home)
    files = {**message.files, name: message.files["config.json"]}
    answer = party.post("/v1/experts", {"domain": party.domain, "files": files})
    assert problem_of(answer, ProblemType.INVALID_REQUEST).field.startswith("files")
    assert kept(house.home) == before


def test_an_expert_for_anothers_domain_is_refused(newcomer: Made) -> None:
    answer = newcomer().post("/v1/experts", {"domain": "founder", "files": {"config.json": "0" * 64}})
    problem_of(answer, ProblemType.FORBIDDEN, "domain")


def test_an_expert_of_files_that_never_came_is_refused_by_file(newcomer: Made) -> None:
    party = newcomer()
    answer = party.post("/v1/experts", {"domain": party.domain, "files": {"config.json": "0" * 64}})
    problem_of(answer, ProblemType.NOT_READY, "files.config.json")


def test_a_second_expert_for_a_domain_is_a_conflict(newcomer: Made, tmp_path: Path) -> None:
    party = newcomer()
    first = register(party, expert(tmp_path / "first", seed=68))
    message = upload_expert(party, expert(tmp_path / "second", seed=69))
    problem_of(party.post("/v1/experts", message.model_dump()), ProblemType.CONFLICT, "domain")
    assert [each.digest for each in party.client.experts()] == [first.digest]


def test_the_same_files_for_a_second_domain_are_a_conflict_that_hurts_nothing(
    house: House, newcomer: Made, tmp_path: Path
) -> None:
    party, folder = newcomer("twin"), expert(tmp_path / "expert", seed=70)
    assert register(party, folder).state is ExpertState.READY
    message = upload_expert(party, folder, domain="twin")
    before = kept(house.home)
    problem_of(party.post("/v1/experts", message.model_dump()), ProblemType.CONFLICT, "files")
    assert kept(house.home) == before


def test_a_refused_expert_leaves_the_files_that_another_expert_of_its_owner_shares(
    house: House, newcomer: Made, tmp_path: Path
) -> None:
    party = newcomer("second")
    first = register(party, expert(tmp_path / "first", seed=71))
    message = upload_expert(party, _weights(_not_finite)(tmp_path / "nan"), domain="second")
    assert checked(party.client, party.client.register_expert(message)).state is ExpertState.REFUSED
    for file in first.files:
        assert (house.home / "blobs" / file.sha256[:2] / file.sha256).is_file(), file.name


def test_sending_a_trunk_back_as_a_contribution_or_expert_never_removes_it(house: House, newcomer: Made) -> None:
    party = newcomer()
    digest = party.client.upload(house.weights, LogProgress(), title="trunk").sha256
    assert party.post("/v1/contributions", {"sha256": digest}).status_code == 422
    party.client.upload(house.weights, LogProgress(), title="trunk")
    files = {"model.safetensors": digest}
    assert party.post("/v1/experts", {"domain": party.domain, "files": files}).status_code == 422
    assert (house.home / "blobs" / digest[:2] / digest).is_file()
