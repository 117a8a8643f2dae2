"""Experts' parts over REST: how they are shown, and versions with fitted MLPs."""

from collections.abc import Iterator

import pytest
import torch
from transformers import AutoModelForCausalLM

from moerge.models.dense import domain_model
from moerge_proto.recipes import SolveOptions
from support.dashboard import signed_in
from support.federation import Federation, Member, body_path, federation_of, parted
from support.merging import SMALL
from support.models import expert, on_body
from support.versions import logits


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with federation_of(tmp_path_factory.mktemp("parts"), **SMALL) as federation:
        yield federation


@pytest.fixture(scope="module")
def fitted(federation: Federation) -> Member:
    """law with registered parts whose MLPs are fitted to the body."""
    law = federation.join("law", expert(federation.folder / "law", 1, **SMALL))
    federation.members["law"] = parted(federation.server, law, federation.body())
    federation.members["law"].register()
    return federation.members["law"]


def test_parts_are_shown_with_their_body_and_expert(federation: Federation, fitted: Member) -> None:
    row = federation.expert("law")
    assert fitted.register() == row
    words = f"for body {federation.body().digest[:12]}, MLPs fitted"
    assert words in federation.moerge("expert", "list", COLUMNS="300")
    assert f"{words}; of expert {fitted.dense[:12]}" in federation.moerge("expert", "show", "law", COLUMNS="300")
    with signed_in(federation.server, fitted.token) as browser:
        assert "MLPs fitted</span>" in browser.get("/experts").text


def test_a_version_has_the_fitted_mlps(federation: Federation, fitted: Member) -> None:
    server, body = federation.server, federation.body()
    federation.contribute(body)
    version = federation.solve(head="average", options=SolveOptions(routers="discriminant"))
    folder = federation.version(version.number)
    assert f"fitted MLPs and head of `{fitted.dense}`" in (folder / "README.md").read_text()
    model = AutoModelForCausalLM.from_pretrained(folder)
    expected, _ = domain_model(*on_body(fitted.place, body_path(server, body)))
    torch.testing.assert_close(logits(model), logits(expected), rtol=1e-4, atol=1e-4)
    whole, _ = domain_model(*on_body(fitted.folder, body_path(server, body)))
    assert not torch.allclose(logits(expected), logits(whole), atol=1e-3)
