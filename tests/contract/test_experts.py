"""Experts over HTTP: refused by the name of what differs, with nothing kept, and accepted exactly once."""

import json
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from moerge.errors import CoordinatorError
from moerge_proto.experts import ExpertState, NewExpert
from moerge_proto.owners import NewOwner, NewToken, Role
from support.federation import Member, eventually, files_below, join, joined
from support.models import expert
from support.processes import Coordinator, coordinator


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    folder = tmp_path_factory.mktemp("experts")
    with coordinator(folder / "home") as running:
        first = joined(running, "first", folder, seed=1)
        yield running
        first.client.close()


@pytest.fixture
def member(server: Coordinator, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Member]:
    """An owner of a domain of its own, with an expert like the first one's, not registered yet."""
    number = zlib.crc32(request.node.nodeid.encode())
    made = join(server, f"domain-{number}", expert(tmp_path / "expert", seed=number))
    yield made
    made.client.close()


def refusal(member: Member) -> CoordinatorError:
    with pytest.raises(CoordinatorError) as caught:
        member.register()
    return caught.value


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rms_norm_eps", 1e-4),
        ("rope_parameters", {"rope_type": "default", "rope_theta": 5e5}),
        ("num_hidden_layers", 2),
        ("vocab_size", 310),
        ("attention_bias", True),
    ],
)
def test_another_architecture_is_refused_by_field_and_not_kept(
    server: Coordinator, member: Member, tmp_path: Path, field: str, value: object
) -> None:
    before = files_below(server)
    good = member.folder
    member.folder = expert(tmp_path / "other", seed=3, **{field: value})  # type: ignore[arg-type]  # no family
    error = refusal(member)
    assert error.type == "urn:moerge:problem:incompatible-expert"
    assert error.where == f"config.json: {field}"
    assert files_below(server) == before
    assert list(member.client.experts()) == []
    member.folder = good
    assert member.register().state is ExpertState.READY


def test_another_tokenizer_is_refused_by_part(member: Member) -> None:
    path = member.folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["vocab"]["new"] = 256
    path.write_text(json.dumps(content))
    assert refusal(member).where == "tokenizer: model.vocab"


def test_a_missing_tensor_is_refused_by_name(member: Member) -> None:
    path = member.folder / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, path)
    assert "model.layers.1.mlp.up_proj.weight" in refusal(member).where


def test_weights_that_are_not_finite_are_refused_and_not_kept(server: Coordinator, member: Member) -> None:
    before = files_below(server)
    path = member.folder / "model.safetensors"
    whole = path.read_bytes()
    tensors = load_file(path)
    tensors["model.layers.2.mlp.down_proj.weight"][0, 0] = torch.nan
    save_file(tensors, path)
    refused = member.register()
    assert refused.state is ExpertState.REFUSED
    assert refused.problem is not None
    assert refused.problem.field == "model.safetensors: model.layers.2.mlp.down_proj.weight"
    eventually(lambda: files_below(server) == before)
    path.write_bytes(whole)
    assert member.register().state is ExpertState.READY


def test_a_refused_expert_is_refused_again_after_another_try(member: Member, tmp_path: Path) -> None:
    good, bad = member.folder, expert(tmp_path / "bad", seed=81)
    tensors = load_file(bad / "model.safetensors")
    tensors["lm_head.weight"][0] = torch.inf
    save_file(tensors, bad / "model.safetensors", metadata={"format": "pt"})
    for folder in (bad, expert(tmp_path / "unlike", seed=82, rms_norm_eps=1e-3), bad):
        member.folder = folder
        if folder == bad:
            assert member.register().state is ExpertState.REFUSED
        else:
            refusal(member)
    member.folder = good
    assert member.register().state is ExpertState.READY


def test_of_experts_unlike_each_other_one_alone_can_be_the_first(tmp_path: Path) -> None:
    with coordinator(tmp_path / "home") as server:
        members = [
            join(server, f"first-{n}", expert(tmp_path / str(n), seed=n, rms_norm_eps=10.0 ** -(n + 3)))
            for n in range(4)
        ]
        files = [member.upload_files() for member in members]
        together = threading.Barrier(len(members))

        def register(number: int) -> str:
            together.wait()
            try:
                members[number].client.register_expert(NewExpert(domain=f"first-{number}", files=files[number]))
            except CoordinatorError as error:
                return error.where
            return "taken"

        with ThreadPoolExecutor(len(members)) as pool:
            answers = sorted(pool.map(register, range(len(members))))
        assert answers == ["config.json: rms_norm_eps"] * 3 + ["taken"]
        for member in members:
            member.client.close()


def test_one_expert_speaks_for_one_domain(server: Coordinator, member: Member) -> None:
    first = member.register()
    other = join(server, f"{member.domain}-too", member.folder)
    assert refusal(other).where == "files"
    other.client.close()
    assert (server.home / "experts" / first.digest / "model.safetensors").is_file()


def test_a_refusal_takes_nothing_from_the_owner_s_other_experts(server: Coordinator, tmp_path: Path) -> None:
    """The refused one shares tokenizer and config files with the good one."""
    with server.client() as operator:
        operator.add_owner(NewOwner(name="two", domains=["two-a", "two-b"]))
        token = operator.add_token(NewToken(role=Role.OWNER, owner="two")).secret
    with server.client(token) as client:
        assert (
            Member("two", "two-a", token, client, expert(tmp_path / "a", seed=71)).register().state is ExpertState.READY
        )
        before = files_below(server)
        bad = expert(tmp_path / "b", seed=72)
        (bad / "generation_config.json").write_text("{}")
        save_file({"unknown": torch.zeros(1)}, bad / "model.safetensors")
        assert "model.safetensors" not in refusal(Member("two", "two-b", token, client, bad)).where
    assert files_below(server) == before


@pytest.mark.parametrize("name", ["../config.json", "a/b.json", ".hidden", "/etc/passwd", "", "nul\0byte", "x" * 300])
def test_names_that_leave_the_folder_are_refused(member: Member, name: str) -> None:
    files = member.upload_files()
    digest = files.pop("config.json")
    with pytest.raises(CoordinatorError) as caught:
        member.client.register_expert(NewExpert(domain=member.domain, files={**files, name: digest}))
    assert caught.value.where == "files"


def test_files_of_others_or_of_nobody_are_refused(member: Member) -> None:
    with pytest.raises(CoordinatorError) as caught:
        member.client.register_expert(NewExpert(domain=member.domain, files={"config.json": "0" * 64}))
    assert caught.value.where == "files.config.json"
