"""Fitted experts: whose they may be, what they replace, what they never are in, and how they go."""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from moerge.cli.common import wait
from moerge.errors import CoordinatorError
from moerge.models.dense import domain_model
from moerge_proto.evaluations import NewEvaluation
from moerge_proto.experts import Expert, ExpertState, Fitted, NewExpert
from moerge_proto.options import SolveOptions
from moerge_proto.trunks import Trunk
from moerge_proto.versions import NewVersion, Version
from support.dashboard import signed_in
from support.fleet import (
    SILENT,
    Member,
    files_below,
    fit,
    honest,
    honest_trunk,
    joined,
    merge,
    registered,
    send,
    send_trunk,
    trunk_path,
)
from support.processes import Coordinator, coordinator, moerge
from support.statistics import written
from support.versions import logits

SMALL = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "vocab_size": 300}


@dataclass
class Fleet:
    """law and art, merged into one trunk; law has contributed, and its expert is fitted, but not registered so."""

    server: Coordinator
    law: Member
    art: Member
    trunk: Trunk
    fitted: Member
    folder: Path

    @property
    def of(self) -> Fitted:
        return Fitted(expert=registered(self.law).digest, trunk=self.trunk.digest)

    def contribute(self, member: Member, *supersedes: str, fitted: Expert | None = None) -> str:
        parts = honest(self.server, member, self.trunk, fitted=fitted)
        return send(member, written(self.folder / "contribution", *parts), *supersedes).digest

    def solve(self, *experts: str) -> Version:
        new = NewVersion(experts=list(experts) or None, options=SolveOptions(routers="discriminant"))
        with self.server.client() as operator:
            return operator.version(int(wait(operator, operator.solve_version(new))))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    with coordinator(tmp_path_factory.mktemp("fitted") / "home") as running:
        yield running


@pytest.fixture
def fleet(server: Coordinator, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Fleet]:
    seed = zlib.crc32(request.node.nodeid.encode())
    law, art = (joined(server, f"{name}-{seed}", tmp_path, seed + n, **SMALL) for n, name in enumerate(("law", "art")))
    trunk = merge(server, [registered(law).digest, registered(art).digest])
    made = Fleet(server, law, art, trunk, fit(server, law, trunk), tmp_path)
    made.contribute(law)
    yield made
    law.client.close()
    art.client.close()


def refused(member: Member, of: Fitted) -> str:
    with pytest.raises(CoordinatorError) as caught:
        member.register(of)
    return str(caught.value)


def test_it_is_of_the_domain_s_own_expert_and_of_a_trunk_in_use(fleet: Fleet) -> None:
    of = fleet.of
    art = registered(fleet.art).digest
    assert f"{art} is not the ready expert of {fleet.law.domain!r}" in refused(
        fleet.fitted, of.model_copy(update={"expert": art})
    )
    assert "is not there" in refused(fleet.fitted, of.model_copy(update={"trunk": "0" * 64}))
    fleet.fitted.client = fleet.art.client
    assert fleet.law.domain in refused(fleet.fitted, of)
    with pytest.raises(ValueError, match="without a source"):
        NewExpert(domain="law", files={"config.json": "0" * 64}, fitted=of, trunk="remerge")


def test_a_version_has_its_mlps_in_the_place_of_the_plain_ones(fleet: Fleet) -> None:
    [plain] = [row for row in fleet.law.client.contributions() if row.active]
    before = fleet.contribute(fleet.art)
    fitted = fleet.fitted.register(fleet.of)
    assert fitted.fitted == fleet.of
    assert fleet.fitted.register(fleet.of) == fitted
    with pytest.raises(CoordinatorError, match=plain.digest):  # what counts already is the plain expert's
        fleet.contribute(fleet.fitted, fitted=fitted)
    fleet.contribute(fleet.fitted, plain.digest, fitted=fitted)
    with pytest.raises(CoordinatorError, match=f"name the domain's expert that has: {fitted.digest}"):
        fleet.solve(plain.expert)
    version = fleet.solve()
    assert version.lineage.domains == [fleet.law.domain, fleet.art.domain]  # in the order of the plain experts
    assert version.lineage.experts == [fitted.digest, registered(fleet.art).digest]
    assert before in version.lineage.contributions

    alone = fleet.server.home / "versions" / str(fleet.solve(fitted.digest).number)
    assert f"fitted to the trunk from `{plain.expert}`" in (alone / "README.md").read_text()
    model = AutoModelForCausalLM.from_pretrained(alone)
    expected, _ = domain_model(fleet.fitted.folder, trunk_path(fleet.server, fleet.trunk))
    torch.testing.assert_close(logits(model), logits(expected), rtol=1e-4, atol=1e-4)
    plain_model, _ = domain_model(fleet.law.folder, trunk_path(fleet.server, fleet.trunk))
    assert not torch.allclose(logits(expected), logits(plain_model), atol=1e-3)
    with fleet.server.client() as operator:
        [line, *_] = operator.trunk_history(fleet.trunk.digest).versions
    assert line.newcomers == []  # its expert is in the trunk


def test_a_version_has_the_context_head_of_a_trunk_for_them(fleet: Fleet) -> None:
    for start, member in enumerate((fleet.law, fleet.art)):
        rows = [[(start * 40 + row + column) % 250 for column in range(30)] for row in range(10)]
        send_trunk(member, written(fleet.folder / "trunk-contribution", *honest_trunk(member, rows)))
    experts = [registered(fleet.law).digest, registered(fleet.art).digest]
    fleet.trunk = merge(fleet.server, experts, method="moerge", options={"context_head": True})
    fleet.fitted = fit(fleet.server, fleet.law, fleet.trunk)
    fitted = fleet.fitted.register(fleet.of)
    fleet.contribute(fleet.fitted, fitted=fitted)
    model = AutoModelForCausalLM.from_pretrained(
        fleet.server.home / "versions" / str(fleet.solve(fitted.digest).number), dtype=torch.float32
    )
    own = AutoModelForCausalLM.from_pretrained(fleet.law.folder)
    assert model.config.num_key_value_heads == own.config.num_key_value_heads + 1
    expected, _ = domain_model(fleet.fitted.folder, trunk_path(fleet.server, fleet.trunk))
    torch.testing.assert_close(logits(model), logits(expected), rtol=1e-4, atol=1e-4)


def test_another_fit_to_the_same_trunk_is_refused_until_the_first_is_withdrawn(fleet: Fleet) -> None:
    fitted = fleet.fitted.register(fleet.of)
    said = refused(fleet.law, fleet.of)  # the plain files, said to be fitted
    assert "registered already" in said
    other = fit(fleet.server, fleet.art, fleet.trunk)
    other.client, other.domain = fleet.law.client, fleet.law.domain
    assert f"has the expert {fitted.digest} fitted to trunk {fleet.trunk.digest}" in refused(other, fleet.of)
    fleet.law.client.withdraw_expert(fitted.digest)
    assert other.register(fleet.of).state is ExpertState.READY


def test_it_is_never_merged_into_a_trunk(fleet: Fleet) -> None:
    fitted = fleet.fitted.register(fleet.of)
    assert fitted.digest not in merge(fleet.server).experts
    for how in ({"experts": [fitted.digest]}, {"method": "ties", "options": {"base": fitted.digest}}):
        with pytest.raises(CoordinatorError, match=f"isn't merged into one\n.*{fleet.of.expert}"):
            merge(fleet.server, **how)
    manifest, sums = honest_trunk(fleet.law)
    sent = written(fleet.folder / "trunk", manifest.model_copy(update={"expert": fitted.digest}), sums)
    with pytest.raises(CoordinatorError, match="isn't merged into one"):
        send_trunk(fleet.law, sent)


def test_under_another_trunk_it_contributes_nothing(fleet: Fleet) -> None:
    fitted = fleet.fitted.register(fleet.of)
    later = merge(fleet.server, [registered(fleet.law).digest])
    sent = written(fleet.folder / "contribution", *honest(fleet.server, fleet.fitted, later, fitted=fitted))
    with pytest.raises(CoordinatorError, match=f"fitted to another trunk, {fleet.trunk.digest}"):
        send(fleet.law, sent)


def test_withdrawn_itself_it_leaves_its_place_to_the_plain_expert(fleet: Fleet) -> None:
    [plain] = [row for row in fleet.law.client.contributions() if row.active]
    fitted = fleet.fitted.register(fleet.of)
    fleet.contribute(fleet.fitted, plain.digest, fitted=fitted)
    done = fleet.law.client.withdraw_expert(fitted.digest)
    assert (done.trunks, done.remerge) == ([], None)
    assert [row for row in fleet.law.client.contributions() if row.active] == []
    assert fleet.contribute(fleet.law) == plain.digest
    assert fleet.solve().lineage.experts == [plain.expert]


def test_it_goes_with_its_expert_and_with_its_trunk_s(fleet: Fleet) -> None:
    """Withdrawing law withdraws its fitted expert. Purging law also purges art's, which holds the trunk with law."""
    [plain] = [row for row in fleet.law.client.contributions() if row.active]
    fitted = fleet.fitted.register(fleet.of)
    fleet.contribute(fleet.fitted, plain.digest, fitted=fitted)
    arts = fit(fleet.server, fleet.art, fleet.trunk)
    of = Fitted(expert=registered(fleet.art).digest, trunk=fleet.trunk.digest)
    held = arts.register(of)
    number = fleet.solve(fitted.digest).number
    with fleet.server.client() as operator:
        done = operator.withdraw_expert(plain.expert, serve=False)
        assert done.versions == [number]
        gone = operator.version(number)
        assert gone.withheld is not None
        assert gone.contains_withdrawn == [fitted.digest, plain.expert]
        assert operator.expert(fitted.digest).state is ExpertState.WITHDRAWN
        assert operator.expert(held.digest).state is ExpertState.READY
        assert done.remerge is not None
        wait(operator, done.remerge)
        assert operator.current_trunk().experts == [of.expert]  # type: ignore[union-attr]  # there is one
        operator.purge_expert(plain.expert, retire=True)
        for digest in (fitted.digest, held.digest):
            assert operator.expert(digest).purged is not None
        left = {Path(path).name for path in files_below(fleet.server)}
        weights = [file.sha256 for each in (fitted, held) for file in each.files if file.name == "model.safetensors"]
        assert left.isdisjoint(weights)


def test_redistribution_and_evaluation_go_by_the_plain_expert(fleet: Fleet) -> None:
    [plain] = [row for row in fleet.law.client.contributions() if row.active]
    fitted = fleet.fitted.register(fleet.of)
    assert not fitted.redistribute
    files = {file.name: file.sha256 for file in registered(fleet.law).files}
    fleet.law.client.register_expert(NewExpert(domain=fleet.law.domain, files=files, redistribute=True))
    assert fleet.law.client.expert(fitted.digest).redistribute
    fleet.contribute(fleet.fitted, plain.digest, fitted=fitted)
    version = fleet.solve()
    scored = {"nll": 20.0, "tokens": 10}
    sums = {"number": version.number, "domain": fleet.law.domain, "expert": plain.expert, "documents": 2, "context": 8}
    sums |= {"stride": 4, "dense": scored, "version": scored, "oracle": scored, "routed": [[10], [10]]}
    fleet.law.client.evaluate(version.number, NewEvaluation.model_validate(sums))
    fleet.law.client.download(
        f"/v1/versions/{version.number}/files", list(version.files), fleet.folder / "pulled", SILENT, title="version"
    )


def test_lists_tell_it_and_a_domain_still_names_the_plain_one(fleet: Fleet) -> None:
    fitted = fleet.fitted.register(fleet.of)
    environment = {**fleet.server.environment(), "COLUMNS": "300"}
    assert fleet.trunk.digest[:12] in moerge("expert", "list", **environment)
    assert fleet.of.expert in moerge("expert", "show", fleet.law.domain, **environment)
    assert f"from expert {fleet.of.expert[:12]}" in moerge("expert", "show", fitted.digest, **environment)
    with signed_in(fleet.server, fleet.law.token) as browser:
        assert "fitted to trunk" in browser.get("/experts").text
