"""Reports of use: no text and no counts leave a consumer, no owner sees another's, no reader writes another's."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx
import pytest

from moerge_proto.owners import NewToken, Role
from moerge_proto.usage import ExpertShares, NewUsage
from support.federation import Federation, federation_of
from support.http_server import serving
from support.merging import SMALL
from support.processes import moerge

WORDS = "confidential", "Ossian", "Pettigrew"
KEYS = {"tokens", "tokens_error", "weight", "weight_error"}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with federation_of(tmp_path_factory.mktemp("usage"), "law", "art", **SMALL) as federation:
        federation.contribute(federation.body())
        federation.solve()
        yield federation


class Curious(BaseHTTPRequestHandler):
    """A coordinator that keeps every byte that comes."""

    came: list[tuple[str, str, str, bytes]]

    def do_PUT(self) -> None:  # the base class's name
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.came.append(("PUT", self.path, str(self.headers), body))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"[]")

    def log_message(self, format: str, *arguments: Any) -> None: ...


def numbers(value: Any) -> Iterator[float]:
    for item in value.values():
        yield from numbers(item) if isinstance(item, dict) else [item]


def test_a_report_has_no_text_and_no_counts(federation: Federation, tmp_path: Path) -> None:
    requests, model = tmp_path / "requests.jsonl", tmp_path / "model"
    text = "the {} merger of {} and {}, "
    lines = [json.dumps({"text": f"{n} {text.format(*WORDS) * (1 + n % 3)}"}) for n in range(37)]
    requests.write_text("\n".join(lines))
    federation.moerge("pull", 1, model)
    Curious.came = []
    with serving(Curious) as address:
        environment = {"MOERGE_COORDINATOR": address, "MOERGE_TOKEN": "moerge_reader"}
        counted = json.loads(moerge("usage", model, "--text", requests, "--json", **environment))
        assert Curious.came == [], "without --report nothing is sent"
        moerge("usage", model, "--text", requests, "--report", **environment)
    [(method, path, headers, body)] = Curious.came
    assert (method, path) == ("PUT", "/v1/versions/1/usage")
    sent = json.loads(body)
    assert sent.keys() == {"experts"}
    assert sent["experts"].keys() == {"law", "art"}
    assert {frozenset(item) for item in sent["experts"].values()} == {frozenset(KEYS)}
    for number in numbers(sent):
        assert 0 <= number <= 1
        assert number == round(number, 3), "an exact share is a fraction of the number of tokens"
    exact = [item["tokens"]["share"] for item in counted["experts"]]
    assert any(share != round(share, 3) for share in exact)
    for secret in (*WORDS, "requests.jsonl", str(tmp_path), str(counted["tokens"])):
        assert secret not in body.decode()
        assert secret not in headers.replace(f"Content-Length: {len(body)}", "")


@pytest.mark.parametrize(
    "more",
    [{"documents": 37}, {"tokens": 1000}, {"text": WORDS[0]}, {"layers": []}, {"reader": "bank"}],
    ids=lambda item: next(iter(item)),
)
def test_a_coordinator_takes_no_counts_text_layers_or_names(federation: Federation, more: dict[str, Any]) -> None:
    shares: dict[str, Any] = {"tokens": 1, "weight": 1}
    for body in ({"experts": {"law": shares}, **more}, {"experts": {"law": {**shares, **{f"x_{k}": 1 for k in more}}}}):
        answer = federation.request("PUT", "/versions/1/usage", json=body)
        assert answer.status_code == 422
        assert "no such field" in answer.json()["detail"]


def test_exact_shares_of_other_clients_are_stored_rounded(federation: Federation) -> None:
    share = 0.123456789
    body = {"experts": {"law": {"tokens": share, "tokens_error": share, "weight": share, "weight_error": share}}}
    answer = federation.request("PUT", "/versions/1/usage", json=body)
    assert set(answer.json()[0]["shares"].values()) == {0.123}
    assert str(share)[:7] not in federation.get("/usage").text


def test_no_owner_sees_another_s_domain_and_no_reader_writes_another_s_report(federation: Federation) -> None:
    mine, yours = (federation.operator.add_token(NewToken(role=Role.READER)).secret for _ in range(2))

    def new(law: float) -> NewUsage:
        shares = {"law": law, "art": 1 - law}
        return NewUsage(experts={name: ExpertShares(tokens=item, weight=item) for name, item in shares.items()})

    with federation.server.client(mine) as me, federation.server.client(yours) as you:
        you.report_usage(1, new(0.875))
        me.report_usage(1, new(0.625))
        assert {row.shares.tokens for row in you.usage()} == {0.875, 0.125}
        assert {row.shares.tokens for row in me.usage()} == {0.625, 0.375}
    for domain, other in (("law", "art"), ("art", "law")):
        token = federation.members[domain].token
        for query in ("", "?after=0"):
            headers = {"Authorization": f"Bearer {token}"}
            answer = httpx.get(f"{federation.server.url}/v1/usage{query}", headers=headers)
            assert answer.status_code == 200
            assert {row["domain"] for row in answer.json()["items"]} == {domain}
            assert other not in answer.text
        refused = httpx.get(f"{federation.server.url}/v1/usage?domain={other}", headers=headers)
        assert refused.status_code == 422
