"""Experts over HTTP: refused by the name of what differs, with nothing kept, and accepted exactly once."""

import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from moerge.client.register import register
from moerge.errors import CoordinatorError
from moerge.models.expert_folder import file_digests
from moerge_lab.mixtures.bts import Bts
from moerge_lab.mixtures.heterogeneous import Heterogeneous
from moerge_proto.experts import ExpertState, NewExpert
from support.federation import SILENT, Member, eventually, files_below, join, joined
from support.models import expert, tokenizer
from support.processes import Coordinator, coordinator, run_command


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


def test_another_architecture_is_refused_by_field_and_not_kept(
    server: Coordinator, member: Member, tmp_path: Path
) -> None:
    before = files_below(server)
    good = member.folder
    member.folder = expert(tmp_path / "other", seed=3, num_hidden_layers=2)
    with pytest.raises(CoordinatorError) as caught:
        member.register()
    assert caught.value.type == "urn:moerge:problem:incompatible-expert"
    assert caught.value.where == "config.json: num_hidden_layers"
    assert files_below(server) == before
    assert list(member.client.experts()) == []
    member.folder = good
    assert member.register().state is ExpertState.READY


def test_an_expert_that_does_not_fit_is_refused_before_its_weights_are_sent(
    server: Coordinator, member: Member, tmp_path: Path
) -> None:
    before, good = files_below(server), member.folder
    member.folder = tmp_path / "mixture"
    members = {"seed": good, "a": good}
    for mixture in (Heterogeneous.of(members, 0), Bts.of(members, 1)):
        mixture.save_pretrained(member.folder)
        tokenizer().save_pretrained(member.folder)
        with pytest.raises(CoordinatorError, match=r"a mixture of moerge tune.*stock transformers \(law 6\)") as caught:
            member.register()
        assert f"'{mixture.config.model_type}'" in str(caught.value)
    add = ("expert", "add", member.folder, "--domain", member.domain)
    done = run_command(*add, MOERGE_COORDINATOR=server.url, MOERGE_TOKEN=member.token)
    assert "stock transformers (law 6)" in done.stderr, "its class is unknown to this process"
    member.folder = expert(tmp_path / "other", seed=3, rms_norm_eps=1e-3)
    add = ("expert", "add", member.folder, "--domain", member.domain)
    done = run_command(*add, MOERGE_COORDINATOR=server.url, MOERGE_TOKEN=member.token)
    shown = done.stdout + done.stderr
    assert done.returncode == 1
    assert f"expert of '{member.domain}' differs from the other experts: rms_norm_eps is 0.001, not " in shown
    assert "config.json" in shown
    assert "model.safetensors" not in shown, "its upload would be told"
    assert files_below(server) == before
    member.folder = good
    new = NewExpert(domain=member.domain, files=file_digests(good))
    with pytest.raises(CoordinatorError, match="no complete upload"):
        member.client.check_expert(new)
    assert register(member.client, good, new, SILENT).state is ExpertState.READY
    with pytest.raises(CoordinatorError, match=f"domain {member.domain!r} has the expert") as caught:
        member.client.check_expert(new.model_copy(update={"files": {"config.json": "0" * 64}}))
    assert caught.value.todo == f"first withdraw it: moerge expert withdraw {member.domain}"


def test_weights_that_are_not_finite_are_refused_and_not_kept(
    server: Coordinator, member: Member, tmp_path: Path
) -> None:
    """The second time too, after another try has taken the place of the first."""
    before, bad = files_below(server), member.folder
    unlike = expert(tmp_path / "unlike", seed=82, rms_norm_eps=1e-3)
    path = member.folder / "model.safetensors"
    whole = path.read_bytes()
    tensors = load_file(path)
    tensors["model.layers.2.mlp.down_proj.weight"][0, 0] = torch.nan
    save_file(tensors, path)
    for _ in range(2):
        refused = member.register()
        assert refused.state is ExpertState.REFUSED
        assert refused.problem is not None
        assert refused.problem.field == "model.safetensors: model.layers.2.mlp.down_proj.weight"
        eventually(lambda: files_below(server) == before)
        member.folder = unlike
        with pytest.raises(CoordinatorError, match="rms_norm_eps"):
            member.register()
        member.folder = bad
    path.write_bytes(whole)
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


def test_names_that_leave_the_folder_and_files_of_nobody_are_refused(member: Member) -> None:
    """An adapter's config names a base, which may be any folder of the machine that reads it."""
    outside = ("../config.json", "a/b.json", ".hidden", "/etc/passwd", "", "nul\0", "x" * 300)
    for name, where in (
        *((name, "files") for name in (*outside, "adapter_config.json")),
        ("config.json", "files.config.json"),
    ):
        with pytest.raises(CoordinatorError) as caught:
            member.client.register_expert(NewExpert(domain=member.domain, files={name: "0" * 64}))
        assert caught.value.where == where, name
