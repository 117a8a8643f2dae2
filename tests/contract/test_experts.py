"""Experts over REST: refusals that keep no files, and simultaneous registrations."""

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
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import file_digests
from moerge_proto.experts import ExpertState, NewExpert
from support.federation import SILENT, Member, body_path, eventually, files_below, join, joined, merge
from support.models import expert
from support.processes import Coordinator, coordinator, run_command
from support.wrappers import wrapper


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    folder = tmp_path_factory.mktemp("experts")
    with coordinator(folder / "home") as running:
        first = joined(running, "first", folder, seed=1)
        yield running
        first.client.close()


@pytest.fixture
def member(server: Coordinator, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Member]:
    """An owner of a new domain with an unregistered expert like the first one's."""
    number = zlib.crc32(request.node.nodeid.encode())
    member = join(server, f"domain-{number}", expert(tmp_path / "expert", seed=number))
    yield member
    member.client.close()


def test_an_unlike_expert_is_refused_before_its_upload(server: Coordinator, member: Member, tmp_path: Path) -> None:
    before, folder = files_below(server), expert(tmp_path / "other", seed=3, rms_norm_eps=1e-3)
    add = ("expert", "add", folder, "--domain", member.domain)
    done = run_command(*add, MOERGE_COORDINATOR=server.url, MOERGE_TOKEN=member.token)
    shown = done.stdout + done.stderr
    assert done.returncode == 1
    assert f"expert of '{member.domain}' differs from the other experts: rms_norm_eps is 0.001, not " in shown
    assert "model.safetensors" not in shown, "progress of an upload"
    assert files_below(server) == before


def test_the_check_of_an_expert_needs_its_files(member: Member) -> None:
    new = NewExpert(domain=member.domain, files=file_digests(DenseFiles(member.folder)))
    with pytest.raises(CoordinatorError, match="no complete upload"):
        member.client.check_expert(new)
    row = register(member.client, DenseFiles(member.folder), new, SILENT)
    with pytest.raises(CoordinatorError, match=f"domain {member.domain!r} has the expert") as caught:
        member.client.check_expert(new.model_copy(update={"files": {"config.json": "0" * 64}}))
    assert caught.value.todo == f"first withdraw it: moerge expert withdraw {row.digest}"


def test_infinite_weights_are_refused_and_not_kept(server: Coordinator, member: Member) -> None:
    before, path = files_below(server), member.folder / "model.safetensors"
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


def test_of_unlike_experts_at_once_one_is_the_first(tmp_path: Path) -> None:
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


@pytest.mark.slow
def test_experts_in_wrappers_are_merged_as_text_models(tmp_path: Path) -> None:
    with coordinator(tmp_path / "home") as server:
        for seed, domain in enumerate(("law", "art")):
            wrapper(tmp_path / domain, "qwen3_vl", seed)
        law, art = (join(server, domain, tmp_path / domain) for domain in ("law", "art"))
        with law.client, art.client:
            assert law.register().state is ExpertState.READY
        add = ("expert", "add", art.folder, "--domain", "art")
        done = run_command(*add, MOERGE_COORDINATOR=server.url, MOERGE_TOKEN=art.token)
        assert "only its text model is read, qwen3; left out: vision tower (" in done.stderr
        body = merge(server, method="average")
        assert body.family == "qwen3"
        assert {name.split(".")[1] for name in load_file(body_path(server, body))} == {"embed_tokens", "layers"}
