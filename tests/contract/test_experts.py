"""Experts over REST: refusals that keep no files."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from moerge.client.register import register
from moerge.errors import CoordinatorError
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import file_digests
from moerge_proto.experts import ExpertState
from support.federation import SILENT, Federation, Member, eventually, federation_of, files_below, parted
from support.models import expert
from support.processes import Coordinator


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with federation_of(tmp_path_factory.mktemp("experts"), "first") as federation:
        yield federation


@pytest.fixture
def server(federation: Federation) -> Coordinator:
    return federation.server


@pytest.fixture
def member(federation: Federation, tmp_path: Path) -> Member:
    """An owner of a new domain with unregistered parts like the first one's."""
    number = len(federation.members) + 1
    member = federation.join(f"domain-{number}", expert(tmp_path / "expert", seed=number))
    return parted(federation.server, member, federation.body(), fitted=False)


def test_an_unlike_expert_is_refused_before_its_upload(server: Coordinator, member: Member) -> None:
    before, path = files_below(server), member.place / "config.json"
    path.write_text(path.read_text().replace('"rms_norm_eps": 1e-06', '"rms_norm_eps": 0.001'))
    new = member.new(file_digests(DenseFiles(member.place)))
    with pytest.raises(CoordinatorError, match=r"rms_norm_eps is 0\.001, not "):
        register(member.client, DenseFiles(member.place), new, SILENT)
    assert files_below(server) == before


def test_the_check_of_an_expert_needs_its_files(member: Member) -> None:
    new = member.new(file_digests(DenseFiles(member.place)))
    with pytest.raises(CoordinatorError, match="no complete upload"):
        member.client.check_expert(new)
    row = register(member.client, DenseFiles(member.place), new, SILENT)
    with pytest.raises(CoordinatorError, match=f"domain {member.domain!r} has the expert") as caught:
        member.client.check_expert(new.model_copy(update={"files": {"config.json": "0" * 64}}))
    assert caught.value.todo == f"first withdraw it: moerge expert withdraw {row.digest}"


def test_infinite_weights_are_refused_and_not_kept(server: Coordinator, member: Member) -> None:
    before, path = files_below(server), member.place / "model.safetensors"
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
