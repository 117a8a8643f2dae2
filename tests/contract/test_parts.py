"""Experts' parts over REST: versions with their MLPs and heads, and how they are shown."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from moerge.client.register import register
from moerge.errors import CoordinatorError
from moerge.models.dense import domain_model
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import file_digests
from moerge_proto.experts import ExpertState, NewExpert
from moerge_proto.options import SolveOptions
from support.dashboard import signed_in
from support.federation import (
    SILENT,
    Federation,
    Member,
    body_path,
    federation_of,
    files_below,
    honest,
    parted,
    registered,
    send,
)
from support.merging import SMALL
from support.models import HEAD_NAMES, on_body
from support.processes import moerge
from support.statistics import written
from support.versions import logits


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """law and art, merged into one body; law has contributed."""
    with federation_of(tmp_path_factory.mktemp("parts"), "law", "art", **SMALL) as federation:
        federation.contribute(federation.merge(), "law")
        yield federation


@pytest.fixture(scope="module")
def fitted(federation: Federation) -> Member:
    """law with parts whose MLPs are fitted to the body."""
    return parted(federation.server, federation.members["law"], federation.body())


@pytest.fixture(scope="module")
def code(federation: Federation) -> Member:
    """A newcomer, whose expert is not in the body."""
    return federation.add("code", **SMALL)


def test_parts_are_shown_with_their_body_and_expert(federation: Federation, fitted: Member) -> None:
    row = fitted.register()
    assert fitted.register() == row
    words = f"parts for body {federation.body().digest[:12]}, MLPs fitted"
    assert words in federation.moerge("expert", "list", COLUMNS="300")
    assert fitted.dense in federation.moerge("expert", "show", "law", COLUMNS="300"), "the whole expert"
    shown = federation.moerge("expert", "show", row.digest, COLUMNS="300")
    assert f"{words}; of expert {fitted.dense[:12]}" in shown
    with signed_in(federation.server, fitted.token) as browser:
        assert "MLPs fitted</span>" in browser.get("/experts").text


def test_weights_of_parts_that_do_not_fit_are_not_sent(federation: Federation, tmp_path: Path) -> None:
    art = parted(federation.server, federation.members["art"], federation.body(), fitted=False)
    folder = shutil.copytree(art.place, tmp_path / "other")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.5}))
    other = NewExpert(domain="art", files=file_digests(DenseFiles(folder)), parts=art.parts)
    with pytest.raises(CoordinatorError, match="rms_norm_eps"):
        register(art.client, DenseFiles(folder), other, SILENT)
    weights = other.files["model.safetensors"]
    assert not any(weights in path for path in files_below(federation.server))
    new = NewExpert(domain="art", files=file_digests(DenseFiles(art.place)), parts=art.parts)
    assert register(art.client, DenseFiles(art.place), new, SILENT).parts == art.parts
    assert "MLPs own" in federation.moerge("expert", "list", COLUMNS="300")


@pytest.mark.parametrize("name", HEAD_NAMES)
def test_fitted_parts_with_a_head_of_their_own_are_refused(
    federation: Federation, code: Member, tmp_path: Path, name: str
) -> None:
    parts = parted(federation.server, code, federation.body())
    folder = shutil.copytree(parts.place, tmp_path / "other")
    tensors = load_file(folder / "model.safetensors")
    tensors[name][0] *= 2
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    refused = replace(parts, at=folder).register()
    assert refused.problem is not None
    assert (refused.problem.field, "another head" in refused.problem.detail) == (name, True)
    row = parts.register()
    assert row.state is ExpertState.READY
    parts.client.withdraw_expert(row.digest)
    command = ["expert", "add", parts.place, "--domain", "code"]
    assert moerge(*command, **federation.server.environment(parts.token)) == row.digest, "they join again as parts"
    assert registered(parts) == row
    parts.client.withdraw_expert(row.digest)


def test_a_version_has_the_fitted_mlps(federation: Federation, fitted: Member) -> None:
    server, body, row = federation.server, federation.body(), fitted.register()
    path = written(federation.folder / "contribution", *honest(server, fitted, body))
    [plain] = [contribution.digest for contribution in fitted.client.contributions() if contribution.active]
    with pytest.raises(CoordinatorError, match=plain):  # the whole expert's counts already
        send(fitted, path)
    send(fitted, path, plain)
    version = federation.solve(experts=[row.digest], head="average", options=SolveOptions(routers="discriminant"))
    folder = federation.version(version.number)
    assert f"fitted MLPs and head of `{fitted.dense}`" in (folder / "README.md").read_text()
    model = AutoModelForCausalLM.from_pretrained(folder)
    expected, _ = domain_model(*on_body(fitted.place, body_path(server, body)))
    torch.testing.assert_close(logits(model), logits(expected), rtol=1e-4, atol=1e-4)
    whole, _ = domain_model(*on_body(federation.members["law"].folder, body_path(server, body)))
    assert not torch.allclose(logits(expected), logits(whole), atol=1e-3)
    [line] = federation.operator.body_history(body.digest).versions
    assert line.newcomers == [], "its expert is in the body"
    assert registered(federation.members["law"]).digest == fitted.dense


def test_the_question_before_a_withdrawal_names_versions_with_its_parts(federation: Federation, code: Member) -> None:
    parts = parted(federation.server, code, federation.body())
    row = parts.register()
    send(parts, written(federation.folder / "contribution", *honest(federation.server, parts, federation.body())))
    number = federation.solve(experts=[row.digest], options=SolveOptions(routers="discriminant")).number
    with pytest.raises(AssertionError, match=f"Versions that contain it are still served: {number}"):
        federation.moerge("expert", "withdraw", code.dense)
