"""Fitted experts over REST: versions with their MLPs, and what is told of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from transformers import AutoModelForCausalLM

from moerge.errors import CoordinatorError
from moerge.models.dense import domain_model
from moerge_proto.experts import Expert, Fitted
from moerge_proto.options import SolveOptions
from moerge_proto.trunks import Trunk
from moerge_proto.versions import Version
from support.dashboard import signed_in
from support.federation import (
    Federation,
    Member,
    federation_of,
    fit,
    honest,
    registered,
    send,
    trunk_path,
)
from support.processes import Coordinator
from support.statistics import written
from support.versions import logits

SMALL = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "vocab_size": 300}


@dataclass
class Pair:
    """law and art, merged into one trunk; law has contributed, and its expert is fitted, but not registered so."""

    federation: Federation
    law: Member
    art: Member
    trunk: Trunk
    fitted: Member

    @property
    def server(self) -> Coordinator:
        return self.federation.server

    @property
    def of(self) -> Fitted:
        return Fitted(expert=registered(self.law).digest, trunk=self.trunk.digest)

    def contribute(self, member: Member, *supersedes: str, fitted: Expert | None = None) -> str:
        parts = honest(self.server, member, self.trunk, fitted=fitted)
        return send(member, written(self.federation.folder / "contribution", *parts), *supersedes).digest

    def solve(self, expert: str) -> Version:
        return self.federation.solve(experts=[expert], options=SolveOptions(routers="discriminant"))


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with federation_of(tmp_path_factory.mktemp("fitted")) as made:
        yield made


@pytest.fixture
def pair(federation: Federation) -> Pair:
    number = len(federation.members)
    law, art = (federation.add(f"{name}-{number}", **SMALL) for name in ("law", "art"))
    trunk = federation.merge(law.domain, art.domain)
    made = Pair(federation, law, art, trunk, fit(federation.server, law, trunk))
    made.contribute(law)
    return made


def test_a_version_has_the_fitted_mlps(pair: Pair) -> None:
    [plain] = [row for row in pair.law.client.contributions() if row.active]
    fitted = pair.fitted.register(pair.of)
    assert pair.fitted.register(pair.of) == fitted
    with pytest.raises(CoordinatorError, match=plain.digest):  # the plain expert's counts already
        pair.contribute(pair.fitted, fitted=fitted)
    pair.contribute(pair.fitted, plain.digest, fitted=fitted)
    folder = pair.federation.version(pair.solve(fitted.digest).number)
    assert f"fitted to the trunk from `{plain.expert}`" in (folder / "README.md").read_text()
    model = AutoModelForCausalLM.from_pretrained(folder)
    expected, _ = domain_model(pair.fitted.folder, trunk_path(pair.server, pair.trunk))
    torch.testing.assert_close(logits(model), logits(expected), rtol=1e-4, atol=1e-4)
    plain_model, _ = domain_model(pair.law.folder, trunk_path(pair.server, pair.trunk))
    assert not torch.allclose(logits(expected), logits(plain_model), atol=1e-3)
    [line] = pair.federation.operator.trunk_history(pair.trunk.digest).versions
    assert line.newcomers == [], "its expert is in the trunk"


def test_a_fitted_expert_is_shown_with_its_original(pair: Pair) -> None:
    of, fitted = pair.of, pair.fitted.register(pair.of)
    run = partial(pair.federation.moerge, COLUMNS="300")
    assert pair.trunk.digest[:12] in run("expert", "list")
    assert of.expert in run("expert", "show", pair.law.domain)
    assert f"from expert {of.expert[:12]}" in run("expert", "show", fitted.digest)
    with signed_in(pair.server, pair.law.token) as browser:
        assert "fitted to trunk" in browser.get("/experts").text


def test_a_fitted_expert_of_another_trunk_is_refused(pair: Pair) -> None:
    with pytest.raises(CoordinatorError) as caught:
        pair.fitted.register(pair.of.model_copy(update={"trunk": "0" * 64}))
    assert caught.value.type == "urn:moerge:problem:wrong-trunk"
