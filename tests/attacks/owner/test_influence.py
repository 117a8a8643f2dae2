"""An owner who bends everybody's routers, or blocks promotions: the operator is told who, before a version is used."""

import html
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from moerge.errors import CoordinatorError
from moerge.statistics.contribution import router_manifest
from moerge_proto.bodies import Body
from moerge_proto.digests import sha256_hex
from moerge_proto.statistics_file import StatisticsSettings
from moerge_proto.versions import Version
from support.dashboard import act, signed_in
from support.evaluations import evaluation, sums
from support.federation import Federation, federation_of, registered, send
from support.statistics import shard_of, written

SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 16, "num_hidden_layers": 2, "vocab_size": 300}
DOMAINS = ("law", "art", "code", "eve")
TOKENS = 2000


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Four owners; law, art and code have contributed features of their own."""
    with federation_of(tmp_path_factory.mktemp("influence"), *DOMAINS, **SIZES) as made:
        body = made.body()
        for domain in DOMAINS[:3]:
            contribute(made, body, domain, text_of(domain))
        yield made


def text_of(domain: str, seed: int = 0) -> Tensor:
    """[TOKENS, H] features around a centre of the domain's own, RMS-normalised."""
    centre = torch.randn(64, generator=torch.Generator().manual_seed(DOMAINS.index(domain)))
    generator = torch.Generator().manual_seed(1000 + 10 * seed + DOMAINS.index(domain))
    return normalised(torch.randn(TOKENS, 64, generator=generator) + 0.6 * centre)


def normalised(x: Tensor) -> Tensor:
    return x / x.pow(2).mean(dim=1, keepdim=True).sqrt()


def contribute(federation: Federation, body: Body, domain: str, features: Tensor, *supersedes: str) -> str:
    member = federation.members[domain]
    sums = shard_of(features)
    name = sha256_hex(features.numpy().tobytes())
    manifest = router_manifest(member.name, registered(member).digest, domain, body, StatisticsSettings())
    counts = {"tokens": sums.tokens, "documents": 1, "shards": [name]}
    path = written(federation.folder / name, manifest.model_copy(update=counts), sums)
    return send(member, path, *supersedes).digest


def spiked(features: Tensor) -> Tensor:
    """Honest features, and 50 times as many that are the mean of the others' domains: a gram of rank one."""
    means = torch.stack([text_of(domain).mean(dim=0) for domain in DOMAINS[:3]])
    return torch.cat([features, normalised(means.mean(dim=0, keepdim=True)).expand(50 * TOKENS, -1)])


def victims(features: Tensor) -> Tensor:
    """Text like that of all others, and none of its own."""
    return torch.cat([text_of(domain, seed=1)[: TOKENS // 3] for domain in DOMAINS[:3]])


def of_art(features: Tensor) -> Tensor:
    return text_of("art", seed=1)


ATTACKS = {"spike": spiked, "text like others'": victims, "text of one other": of_art}


def test_unusual_influence_warning_names_only_its_owner(federation: Federation) -> None:
    body, operator = federation.body(), federation.operator
    sent = contribute(federation, body, "eve", text_of("eve"))
    measured = operator.version_influence(federation.solve().number)
    assert measured.warnings == []
    assert [row.owner for row in measured.domains] == [f"{domain}-owner" for domain in DOMAINS]
    for name, attack in ATTACKS.items():
        sent = contribute(federation, body, "eve", attack(text_of("eve")), sent)
        version = federation.solve()
        warnings = operator.version_influence(version.number).warnings
        assert warnings, name
        assert all("eve (owner eve-owner)" in warning for warning in warnings), warnings
        assert_told(federation, version, warnings)


def assert_told(federation: Federation, version: Version, warnings: list[str]) -> None:
    """Command and dashboard say it."""
    shown = federation.moerge("version", "show", version.number, COLUMNS="200")
    assert "Influence on the routers" in shown
    with signed_in(federation.server) as browser:
        page, home = (html.unescape(browser.get(path).text) for path in (f"/versions/{version.number}", "/versions"))
    for warning in warnings:
        assert warning in page
    assert f"Version {version.number}: {warnings[0]}" in home


def test_bad_reports_of_one_owner_can_be_overridden(federation: Federation) -> None:
    operator, eve = federation.operator, federation.members["eve"].client
    champion, version = (federation.solve(options={"ridge_lambda": value}).number for value in (3.0, 4.0))
    assert operator.promote("champion", champion).warnings == [
        f"version {champion} has no score to compare on {', '.join(DOMAINS)}"
    ]
    for number, nll in ((champion, 20.0), (version, 100.0)):
        eve.evaluate(evaluation(number, sums(federation.members["eve"].dense, nll, "eve", routed=[[10, 0, 0, 0]] * 2)))
    with pytest.raises(CoordinatorError, match="eve, reported by eve-owner, from 100 to") as caught:
        operator.promote("champion", version)
    assert caught.value.where == "override"
    with signed_in(federation.server) as browser:
        assert "eve, reported by eve-owner, from 100 to" in browser.get(f"/versions/{version}/promote").text
        refused = act(browser, f"/versions/{version}/promote", alias="champion")
        assert (refused.status_code, "Reason to promote" in refused.text) == (409, True)
        act(browser, f"/versions/{version}/promote", alias="champion", override="eve's figures can't be")
        assert operator.alias("champion").version == version
        assert "eve&#39;s figures can&#39;t be" in browser.get("/aliases/champion").text
    assert list(operator.alias_history("champion"))[-1].override == "eve's figures can't be"
    operator.roll_back("champion", version)
    shown = federation.moerge("version", "promote", version, "--override", "eve is odd")
    assert shown.startswith(f"champion is version {version}")
    assert "eve is odd" in federation.moerge("version", "history", COLUMNS="200")
