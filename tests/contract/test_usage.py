"""The use of experts over REST: from a consumer's command to the owners of the experts."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moerge.client.client import Client
from moerge.errors import CoordinatorError
from moerge_proto.owners import NewToken, Role
from moerge_proto.problems import ProblemType
from moerge_proto.usage import ExpertShares, NewUsage
from support.federation import Federation, federation_of
from support.merging import SMALL
from support.processes import moerge


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with federation_of(tmp_path_factory.mktemp("usage"), "law", "art", **SMALL) as federation:
        federation.contribute(federation.body())
        federation.solve()
        yield federation


@pytest.fixture(scope="module")
def requests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("requests") / "requests.jsonl"
    path.write_text("".join(json.dumps({"text": f"request {n} {'again ' * (n % 4)}"}) + "\n" for n in range(30)))
    return path


def token(federation: Federation, name: str | None = None) -> str:
    return federation.operator.add_token(NewToken(role=Role.READER, name=name)).secret


def of(law: float, art: float) -> NewUsage:
    return NewUsage(experts={name: ExpertShares(tokens=s, weight=s) for name, s in (("law", law), ("art", art))})


def listed(client: Client) -> list[tuple[str, str | None, float]]:
    return [(row.domain, row.reader, row.shares.tokens) for row in client.usage()]


def test_a_consumer_s_command_reports_what_owners_then_see(
    federation: Federation, requests: Path, tmp_path: Path
) -> None:
    environment = federation.server.environment(token(federation, "clinic"))
    moerge("pull", 1, tmp_path / "model", **environment)
    shown: dict[str, Any] = json.loads(moerge("usage", tmp_path / "model", "--text", requests, "--json", **environment))
    assert shown["version"] == "1"
    with federation.server.client(environment["MOERGE_TOKEN"]) as reader:
        assert list(reader.usage()) == [], "only --report sends"
        with pytest.raises(AssertionError, match="--report: no MOERGE_TOKEN"):
            moerge("usage", tmp_path / "model", "--text", requests, "--report", MOERGE_COORDINATOR=str(reader.url))
        moerge("usage", tmp_path / "model", "--text", requests, "--report", **environment)
        sent = {row.domain: row for row in reader.usage()}
    assert sent.keys() == {"law", "art"}
    for item in shown["experts"]:
        for kind in ("tokens", "weight"):
            expected = round(item[kind]["share"], 3), round(item[kind]["error"], 3)
            shares = sent[item["domain"]].shares
            assert (getattr(shares, kind), getattr(shares, f"{kind}_error")) == pytest.approx(expected, abs=1e-3)
    law = federation.server.environment(federation.members["law"].token)
    table = moerge("expert", "usage", **law, COLUMNS="160")
    assert "clinic" in table
    assert f"{100 * sent['law'].shares.tokens:.1f} ± " in table
    assert " art " not in table
    assert [row["domain"] for row in json.loads(moerge("expert", "usage", "--json", **law))] == ["law"]
    assert json.loads(moerge("expert", "usage", "art", "--json", **law)) == []


def test_each_role_sees_its_part_and_a_reader_replaces_its_own(federation: Federation) -> None:
    named, other = token(federation, "bank"), token(federation)
    before = listed(federation.operator)
    with federation.server.client(named) as bank, federation.server.client(other) as nameless:
        bank.report_usage(1, of(0.9, 0.1))
        nameless.report_usage(1, of(0.2, 0.8))
        rows = bank.report_usage(1, of(0.6, 0.4))
        assert [row.shares.tokens for row in rows] == [0.6, 0.4]
        assert listed(bank) == [("law", "bank", 0.6), ("art", "bank", 0.4)]
        assert listed(nameless) == [("law", None, 0.2), ("art", None, 0.8)]
        assert sorted(map(str, listed(federation.operator))) == sorted(
            map(str, [*before, *listed(bank), *listed(nameless)])
        )
    assert {row[0] for row in listed(federation.members["art"].client)} == {"art"}
    with federation.server.client(token(federation, "bank")) as again:
        assert listed(again) == [("law", "bank", 0.6), ("art", "bank", 0.4)], "another token of the same name"


def test_refusals_name_the_field(federation: Federation) -> None:
    with pytest.raises(CoordinatorError, match="role operator or reader"):
        federation.members["law"].client.report_usage(1, of(0.5, 0.5))
    for number, experts, kind, field in (
        (1, {"code": {"tokens": 1, "weight": 1}}, ProblemType.INVALID_REQUEST, "experts"),
        (1, {"law": {"tokens": 0.9, "weight": 1}, "art": {"tokens": 0.2, "weight": 0}}, ProblemType.INVALID_REQUEST,
         "experts"),
        (1, {"law": {"tokens": 2, "weight": 1}}, ProblemType.INVALID_REQUEST, "experts.law.tokens"),
        (1, {}, ProblemType.INVALID_REQUEST, "experts"),
        (7, {"law": {"tokens": 1, "weight": 1}}, ProblemType.NOT_FOUND, "number"),
    ):  # fmt: skip
        answer = federation.request("PUT", f"/versions/{number}/usage", json={"experts": experts})
        assert (answer.json()["type"], answer.json()["field"]) == (kind.urn, field)
