"""Fitted experts over REST: versions with their MLPs, and how they are shown."""

from collections.abc import Iterator

import pytest
import torch
from transformers import AutoModelForCausalLM

from moerge.errors import CoordinatorError
from moerge.models.dense import domain_model
from moerge_proto.experts import Fitted
from moerge_proto.options import SolveOptions
from support.dashboard import signed_in
from support.federation import Federation, Member, body_path, federation_of, fit, honest, registered, send
from support.merging import SMALL
from support.models import on_body
from support.statistics import written
from support.versions import logits


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """law and art, merged into one body; law has contributed."""
    with federation_of(tmp_path_factory.mktemp("fitted"), "law", "art", **SMALL) as federation:
        federation.contribute(federation.merge(), "law")
        yield federation


@pytest.fixture(scope="module")
def fitted(federation: Federation) -> Member:
    """law with MLPs that are fitted to the body."""
    return fit(federation.server, federation.members["law"], federation.body())


@pytest.fixture(scope="module")
def of(federation: Federation) -> Fitted:
    return Fitted(expert=registered(federation.members["law"]).digest, body=federation.body().digest)


def test_a_fitted_expert_is_shown_with_its_original(federation: Federation, fitted: Member, of: Fitted) -> None:
    row = fitted.register(of)
    assert fitted.register(of) == row
    assert of.body[:12] in federation.moerge("expert", "list", COLUMNS="300")
    assert of.expert in federation.moerge("expert", "show", "law", COLUMNS="300")
    assert f"from expert {of.expert[:12]}" in federation.moerge("expert", "show", row.digest, COLUMNS="300")
    with signed_in(federation.server, fitted.token) as browser:
        assert "fitted to body" in browser.get("/experts").text


def test_a_version_has_the_fitted_mlps(federation: Federation, fitted: Member, of: Fitted) -> None:
    server, body, row = federation.server, federation.body(), fitted.register(of)
    path = written(federation.folder / "contribution", *honest(server, fitted, body, fitted=row))
    [plain] = [contribution.digest for contribution in fitted.client.contributions() if contribution.active]
    with pytest.raises(CoordinatorError, match=plain):  # the plain expert's counts already
        send(fitted, path)
    send(fitted, path, plain)
    version = federation.solve(experts=[row.digest], options=SolveOptions(routers="discriminant"))
    folder = federation.version(version.number)
    assert f"fitted to the body from `{of.expert}`" in (folder / "README.md").read_text()
    model = AutoModelForCausalLM.from_pretrained(folder)
    expected, _ = domain_model(*on_body(fitted.folder, body_path(server, body)))
    torch.testing.assert_close(logits(model), logits(expected), rtol=1e-4, atol=1e-4)
    plain_model, _ = domain_model(*on_body(federation.members["law"].folder, body_path(server, body)))
    assert not torch.allclose(logits(expected), logits(plain_model), atol=1e-3)
    [line] = federation.operator.body_history(body.digest).versions
    assert line.newcomers == [], "its expert is in the body"
