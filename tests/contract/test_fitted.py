"""Fitted experts: whose they may be, what they replace, what they never are in, and how they go."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
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
from moerge_proto.versions import Version
from support.dashboard import signed_in
from support.federation import (
    SILENT,
    Federation,
    Member,
    federation_of,
    files_below,
    fit,
    honest,
    honest_trunk,
    registered,
    send,
    send_trunk,
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

    def solve(self, *experts: str) -> Version:
        return self.federation.solve(experts=list(experts) or None, options=SolveOptions(routers="discriminant"))


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


def refused(member: Member, of: Fitted) -> str:
    with pytest.raises(CoordinatorError) as caught:
        member.register(of)
    return str(caught.value)


def test_it_is_of_the_domain_s_own_expert_and_of_a_trunk_in_use(pair: Pair) -> None:
    of = pair.of
    art = registered(pair.art).digest
    assert f"{art} is not the ready expert of {pair.law.domain!r}" in refused(
        pair.fitted, of.model_copy(update={"expert": art})
    )
    assert "is not there" in refused(pair.fitted, of.model_copy(update={"trunk": "0" * 64}))
    pair.fitted.client = pair.art.client
    assert pair.law.domain in refused(pair.fitted, of)
    with pytest.raises(ValueError, match="without a source"):
        NewExpert(domain="law", files={"config.json": "0" * 64}, fitted=of, trunk="remerge")


def test_a_version_has_its_mlps_in_the_place_of_the_plain_ones(pair: Pair) -> None:
    [plain] = [row for row in pair.law.client.contributions() if row.active]
    before = pair.contribute(pair.art)
    fitted = pair.fitted.register(pair.of)
    assert fitted.fitted == pair.of
    assert pair.fitted.register(pair.of) == fitted
    with pytest.raises(CoordinatorError, match=plain.digest):  # what counts already is the plain expert's
        pair.contribute(pair.fitted, fitted=fitted)
    pair.contribute(pair.fitted, plain.digest, fitted=fitted)
    with pytest.raises(CoordinatorError, match=f"name the domain's expert that has: {fitted.digest}"):
        pair.solve(plain.expert)
    version = pair.solve()
    assert version.lineage.domains == [pair.law.domain, pair.art.domain]  # in the order of the plain experts
    assert version.lineage.experts == [fitted.digest, registered(pair.art).digest]
    assert before in version.lineage.contributions

    alone = pair.federation.version(pair.solve(fitted.digest).number)
    assert f"fitted to the trunk from `{plain.expert}`" in (alone / "README.md").read_text()
    model = AutoModelForCausalLM.from_pretrained(alone)
    expected, _ = domain_model(pair.fitted.folder, trunk_path(pair.server, pair.trunk))
    torch.testing.assert_close(logits(model), logits(expected), rtol=1e-4, atol=1e-4)
    plain_model, _ = domain_model(pair.law.folder, trunk_path(pair.server, pair.trunk))
    assert not torch.allclose(logits(expected), logits(plain_model), atol=1e-3)
    [line, *_] = pair.federation.operator.trunk_history(pair.trunk.digest).versions
    assert line.newcomers == []  # its expert is in the trunk


def test_a_version_has_the_context_head_of_a_trunk_for_them(pair: Pair) -> None:
    for start, member in enumerate((pair.law, pair.art)):
        rows = [[(start * 40 + row + column) % 250 for column in range(30)] for row in range(10)]
        send_trunk(member, written(pair.federation.folder / "trunk-contribution", *honest_trunk(member, rows)))
    domains = (pair.law.domain, pair.art.domain)
    pair.trunk = pair.federation.merge(*domains, method="moerge", options={"context_head": True})
    pair.fitted = fit(pair.server, pair.law, pair.trunk)
    fitted = pair.fitted.register(pair.of)
    pair.contribute(pair.fitted, fitted=fitted)
    model = AutoModelForCausalLM.from_pretrained(
        pair.federation.version(pair.solve(fitted.digest).number), dtype=torch.float32
    )
    own = AutoModelForCausalLM.from_pretrained(pair.law.folder)
    assert model.config.num_key_value_heads == own.config.num_key_value_heads + 1
    expected, _ = domain_model(pair.fitted.folder, trunk_path(pair.server, pair.trunk))
    torch.testing.assert_close(logits(model), logits(expected), rtol=1e-4, atol=1e-4)


def test_another_fit_to_the_same_trunk_is_refused_until_the_first_is_withdrawn(pair: Pair) -> None:
    fitted = pair.fitted.register(pair.of)
    said = refused(pair.law, pair.of)  # the plain files, said to be fitted
    assert "registered already" in said
    other = fit(pair.server, pair.art, pair.trunk)
    other.client, other.domain = pair.law.client, pair.law.domain
    assert f"has the expert {fitted.digest} fitted to trunk {pair.trunk.digest}" in refused(other, pair.of)
    pair.law.client.withdraw_expert(fitted.digest)
    assert other.register(pair.of).state is ExpertState.READY


def test_it_is_never_merged_into_a_trunk(pair: Pair) -> None:
    fitted = pair.fitted.register(pair.of)
    assert fitted.digest not in pair.federation.merge().experts
    for how in ({"experts": [fitted.digest]}, {"method": "ties", "options": {"base": fitted.digest}}):
        with pytest.raises(CoordinatorError, match=f"isn't merged into one\n.*{pair.of.expert}"):
            pair.federation.merge(**how)
    manifest, sums = honest_trunk(pair.law)
    sent = written(pair.federation.folder / "trunk", manifest.model_copy(update={"expert": fitted.digest}), sums)
    with pytest.raises(CoordinatorError, match="isn't merged into one"):
        send_trunk(pair.law, sent)


def test_under_another_trunk_it_contributes_nothing(pair: Pair) -> None:
    fitted = pair.fitted.register(pair.of)
    later = pair.federation.merge(pair.law.domain)
    sent = written(pair.federation.folder / "contribution", *honest(pair.server, pair.fitted, later, fitted=fitted))
    with pytest.raises(CoordinatorError, match=f"fitted to another trunk, {pair.trunk.digest}"):
        send(pair.law, sent)


def test_withdrawn_itself_it_leaves_its_place_to_the_plain_expert(pair: Pair) -> None:
    [plain] = [row for row in pair.law.client.contributions() if row.active]
    fitted = pair.fitted.register(pair.of)
    pair.contribute(pair.fitted, plain.digest, fitted=fitted)
    done = pair.law.client.withdraw_expert(fitted.digest)
    assert (done.trunks, done.remerge) == ([], None)
    assert [row for row in pair.law.client.contributions() if row.active] == []
    assert pair.contribute(pair.law) == plain.digest
    assert pair.solve().lineage.experts == [plain.expert]


def test_it_goes_with_its_expert_and_with_its_trunk_s(pair: Pair) -> None:
    """Withdrawing law withdraws its fitted expert. Purging law also purges art's, which holds the trunk with law."""
    [plain] = [row for row in pair.law.client.contributions() if row.active]
    fitted = pair.fitted.register(pair.of)
    pair.contribute(pair.fitted, plain.digest, fitted=fitted)
    arts = fit(pair.server, pair.art, pair.trunk)
    of = Fitted(expert=registered(pair.art).digest, trunk=pair.trunk.digest)
    held = arts.register(of)
    number = pair.solve(fitted.digest).number
    operator = pair.federation.operator
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
    left = {Path(path).name for path in files_below(pair.server)}
    weights = [file.sha256 for each in (fitted, held) for file in each.files if file.name == "model.safetensors"]
    assert left.isdisjoint(weights)


def test_redistribution_and_evaluation_go_by_the_plain_expert(pair: Pair) -> None:
    [plain] = [row for row in pair.law.client.contributions() if row.active]
    fitted = pair.fitted.register(pair.of)
    assert not fitted.redistribute
    pair.law.allow()
    assert pair.law.client.expert(fitted.digest).redistribute
    pair.contribute(pair.fitted, plain.digest, fitted=fitted)
    version = pair.solve()
    scored = {"nll": 20.0, "tokens": 10}
    sums = {"number": version.number, "domain": pair.law.domain, "expert": plain.expert, "documents": 2, "context": 8}
    sums |= {"stride": 4, "dense": scored, "version": scored, "oracle": scored, "routed": [[10], [10]]}
    pair.law.client.evaluate(version.number, NewEvaluation.model_validate(sums))
    pair.law.client.download(
        f"/v1/versions/{version.number}/files",
        list(version.files),
        pair.federation.folder / "pulled",
        SILENT,
        title="version",
    )


def test_lists_tell_it_and_a_domain_still_names_the_plain_one(pair: Pair) -> None:
    fitted = pair.fitted.register(pair.of)
    run = partial(pair.federation.moerge, COLUMNS="300")
    assert pair.trunk.digest[:12] in run("expert", "list")
    assert pair.of.expert in run("expert", "show", pair.law.domain)
    assert f"from expert {pair.of.expert[:12]}" in run("expert", "show", fitted.digest)
    with signed_in(pair.server, pair.law.token) as browser:
        assert "fitted to trunk" in browser.get("/experts").text
