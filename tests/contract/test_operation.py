"""Operation: readiness, logs, metrics, the audit log, stopping."""

import http.client
import json
import os
import re
import resource
import signal
import sqlite3
import ssl
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from moerge.build import build
from moerge.cli.app import app
from moerge.cli.common import wait
from moerge.client.client import Client
from moerge.errors import CoordinatorError, MoergeError
from moerge_coordinator.operation.home import initialise
from moerge_lab.demo.processes import address_in
from moerge_proto.audit import AuditEntry
from moerge_proto.digests import content_digest, sha256_hex
from moerge_proto.owners import NewOwner, NewToken, Role
from moerge_proto.versions import NewVersion
from moerge_proto.workflows import WorkflowState
from support.federation import SILENT, Federation, eventually, federation_of, files_below, join
from support.processes import Coordinator, coordinator, ended, moerge, start_worker
from support.uploads import RawClient, announced

DEPLOY = Path(__file__).parents[2] / "deploy" / "monitoring"
STAYS = """
import sys
from pathlib import Path
from threading import Event

from moerge.cli import app
from moerge_coordinator.workflows.publish_version import PublishVersion


def stay(self, lineage, inputs):
    Path(sys.argv[3], "solving").touch()
    Event().wait()


PublishVersion._solution = stay
app.main()
"""
"""A coordinator that never ends a solve."""


def bearer(server: Coordinator, token: str | None = None) -> dict[str, str]:
    return {"Authorization": f"Bearer {token or server.operator_token}"}


def log_lines(server: Coordinator) -> list[dict[str, Any]]:
    """The server's log so far; every whole line of it must be a JSON object."""
    whole, _, _ = (server.home / "log").read_text().rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]


def figures(server: Coordinator) -> dict[tuple[str, ...], float]:
    """(name, label values in the order of their names) -> value."""
    response = httpx.get(f"{server.url}/metrics", headers=bearer(server))
    samples = [sample for family in text_string_to_metric_families(response.text) for sample in family.samples]
    return {(sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value for sample in samples}


# --- health


def test_without_its_blob_store_it_lives_but_is_not_ready(server: Coordinator) -> None:
    incoming = server.home / "blobs" / "incoming"
    assert httpx.get(f"{server.url}/readyz").status_code == 200
    incoming.rmdir()
    incoming.write_bytes(b"in the way")
    try:
        response = httpx.get(f"{server.url}/readyz")
        assert (response.status_code, response.json()["field"]) == (503, "blob store")
        assert httpx.get(f"{server.url}/healthz").status_code == 200
    finally:
        incoming.unlink()
    assert httpx.get(f"{server.url}/readyz").json()["status"] == "ok"


# --- version, commit


def test_every_surface_shows_version_and_commit(server: Coordinator) -> None:
    about = build()
    assert about.commit is not None, "the tests run in a clone"
    ready = httpx.get(f"{server.url}/readyz").json()
    assert (ready["version"], ready["commit"]) == (about.version, about.commit)
    assert figures(server)["moerge_build_info", about.commit, about.version] == 1
    info = httpx.get(f"{server.url}/openapi.json").json()["info"]
    assert (info["version"], info["x-commit"]) == (about.version, about.commit)
    assert moerge("--version") == f"{about.version} ({about.commit[:12]})"


# --- request ids, log


def test_an_answer_has_the_request_s_id_if_it_is_valid(server: Coordinator) -> None:
    for sent, kept in (("abc-1.2_3", True), ("a b", False), ("x" * 65, False), ("", False)):
        response = httpx.get(f"{server.url}/healthz", headers={"X-Request-Id": sent})
        assert (response.headers["X-Request-Id"] == sent) == kept
        assert 0 < len(response.headers["X-Request-Id"]) <= 64


def test_the_log_has_calls_that_change_something(server: Coordinator) -> None:
    named = {**bearer(server), "X-Request-Id": "look-for-me"}
    httpx.get(f"{server.url}/v1/owners", headers=named)
    assert httpx.get(f"{server.url}/v1/bodies/current", headers=named).status_code == 404
    httpx.post(f"{server.url}/v1/owners", headers=named, json={"name": "seen", "domains": ["seeing"]})
    written: list[dict[str, Any]] = []

    def is_written() -> bool:  # after the answer has left
        written[:] = [line for line in log_lines(server) if line.get("request") == "look-for-me"]
        return len(written) >= 2

    eventually(is_written)
    happened, call = written
    assert happened["event"] == "owner seen is added without a key: seeing"
    assert (call["method"], call["path"], call["status"], call["token"]) == ("POST", "/v1/owners", 201, 1)
    assert f"the dashboard is at {server.url}/" in [line["event"] for line in log_lines(server)]


def test_neither_tokens_nor_bodies_nor_queries_are_logged(server: Coordinator) -> None:
    httpx.post(f"{server.url}/v1/owners?what=needle-1", headers=bearer(server), json={"name": "needle-2"})
    httpx.get(f"{server.url}/v1/owners", headers=bearer(server, "moerge_needle-3"))
    with server.client() as operator:
        token = operator.add_token(NewToken(role=Role.READER, note="needle-4")).secret
    log = (server.home / "log").read_text()
    for secret in ("needle", token, server.operator_token):
        assert secret not in log


# --- metrics


def test_metrics_count_requests_by_route(server: Coordinator) -> None:
    member = join(server, "figures", Path("nowhere"))
    member.client.close()
    raw, data, before = RawClient(server.url, member.token), b"some bytes" * 100, figures(server)
    upload, digest = raw.open(announced(data)), sha256_hex(data)
    raw.put(upload, data)
    raw.commit(upload)
    raw.request("GET", f"/experts/{digest}")
    raw.request("GET", "/no/such/place")
    after = figures(server)

    def grown(*key: str) -> float:
        return after.get(key, 0) - before.get(key, 0)

    chunks = "/v1/uploads/{upload}/chunks/{sha256}"
    assert grown("moerge_uploads_total", "stored") == 1
    assert grown("moerge_received_bytes_total", "PUT", chunks) == len(data)
    assert grown("moerge_requests_total", "PUT", chunks, "204") == 1
    assert grown("moerge_request_seconds_count", "PUT", chunks) == 1
    assert grown("moerge_requests_total", "GET", "/v1/experts/{digest}", "404") == 1
    assert grown("moerge_requests_total", "GET", "none", "404") == 1
    assert not any(digest in part for key in after for part in key)


@pytest.fixture(scope="module")
def solved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Federation, str]]:
    """A federation with a champion, and the workflow that solved it."""
    with federation_of(tmp_path_factory.mktemp("solved"), "law") as federation:
        federation.contribute(federation.body())
        workflow = federation.operator.solve_version(NewVersion())
        wait(federation.operator, workflow)
        federation.operator.promote("champion", 1)
        yield federation, workflow.id


def test_the_log_names_events_and_workflows(solved: tuple[Federation, str]) -> None:
    federation, workflow = solved
    log = log_lines(federation.server)
    events = [line["event"] for line in log if line["logger"] == "moerge.coordinator"]
    assert [re.sub(r"\b[0-9a-f]{12}\b|\b[0-9,]+ tokens", "N", event) for event in events[-7:]] == [
        "owner law-owner is added without a key: law",
        "token 2 is added: owner of law-owner",
        "expert N of law has arrived from law-owner",
        "expert N of law is ready",
        "router contribution N of law has arrived from law-owner: N",
        "version 1 is solved: law",
        "version 1 is champion",
    ]
    named = {line["event"].partition(":")[0]: line["workflow"] for line in log if "workflow" in line}
    assert named["solving routers of law"] == workflow


def test_metrics_count_workflows_and_solves(solved: tuple[Federation, str]) -> None:
    federation, counts = solved[0], figures(solved[0].server)
    for workflow in ("take_in_expert", "publish_version"):
        assert counts["moerge_workflows", workflow, "done"] == 1
    assert counts["moerge_solve_seconds_count",] == 1
    assert counts["moerge_solve_condition_count",] == federation.operator.body("current").layers
    assert counts["moerge_solve_condition_sum",] > 0


def test_metrics_tell_the_present_state(solved: tuple[Federation, str], tmp_path: Path) -> None:
    federation, start = solved[0], time.time()
    days = NewToken(role=Role.METRICS, expires=datetime.now(UTC) + timedelta(days=1))
    token = federation.operator.add_token(days)
    member = federation.members["law"]
    RawClient(federation.server.url, member.token).open(announced(b"incomplete"))
    moerge("coordinator", "backup", federation.server.home, tmp_path / "backup")
    now = figures(federation.server)
    assert now["moerge_leader",] == 1
    assert now["moerge_free_bytes",] > 0
    assert now["process_resident_memory_bytes",] > 0
    assert now["moerge_stored_bytes", member.name] > 0
    assert now["moerge_open_uploads", member.name] == 1
    assert now["moerge_token_expiry_seconds", str(token.id), "", "metrics"] == pytest.approx(start + 86400, abs=60)
    assert now["moerge_version_seconds",] == pytest.approx(start, abs=600)
    assert now["moerge_backup_seconds",] == pytest.approx(start, abs=60)


def test_alerts_and_panels_read_figures_that_exist(solved: tuple[Federation, str]) -> None:
    text = httpx.get(f"{solved[0].server.url}/metrics", headers=bearer(solved[0].server)).text
    names = {family.name for family in text_string_to_metric_families(text)}
    rules = yaml.safe_load((DEPLOY / "rules.yaml").read_text())["groups"][0]["rules"]
    panels = json.loads((DEPLOY / "grafana.json").read_text())["panels"]
    queries = [rule["expr"] for rule in rules] + [target["expr"] for panel in panels for target in panel["targets"]]
    read = {name for query in queries for name in re.findall(r"\b(?:moerge|process)_\w+", query)}
    assert {name.removesuffix("_total").removesuffix("_bucket") for name in read} <= names


def test_ended_workflows_are_forgotten_after_a_while(tmp_path: Path) -> None:
    with federation_of(tmp_path, "law", settings="abandoned_after_hours = 0.0001\n") as federation:
        federation.contribute(federation.body())
        eventually(lambda: {item.state for item in federation.operator.workflows()} == {WorkflowState.DONE})
        federation.server.kill()
        federation.server.start()
        eventually(lambda: not list(federation.operator.workflows()))
        assert ("moerge_workflows", "take_in_expert", "done") not in figures(federation.server)


# --- signals


def test_sighup_reads_the_certificate_and_the_log_level_again(tmp_path: Path) -> None:
    token = initialise(tmp_path / "home").secret
    files = [tmp_path / name for name in ("certificate.pem", "key.pem")]
    settings = [f'tls_{name} = "{path}"' for name, path in zip(("certificate", "key"), files, strict=True)]
    (tmp_path / "home" / "coordinator.toml").write_text("\n".join(["port = 0", *settings]))
    first = certify(*files)
    server = Coordinator(tmp_path / "home", "unused")
    server.start()
    try:
        assert serial(server) == first
        with (
            Client(server.url, token, patience=0.1) as client,
            pytest.raises(MoergeError, match="VERIFY_FAILED") as told,
        ):
            client.identity()
        assert "SSL_CERT_FILE" in told.value.todo
        second = certify(*files)
        assert serial(server) == first
        server.send(signal.SIGHUP)
        eventually(lambda: serial(server) == second)
        files[0].write_text("no certificate")
        server.send(signal.SIGHUP)
        eventually(lambda: any("the former settings stay" in line["event"] for line in log_lines(server)))
        assert serial(server) == second
        with httpx.Client(verify=False) as client:  # noqa: S501  # self-signed
            answer = client.get(f"{server.url}/metrics", headers=bearer(server, token))
        assert "moerge_leader 1.0" in answer.text
    finally:
        server.stop()


def certify(certificate: Path, key: Path) -> int:
    """Writes a self-signed certificate for this machine; returns its serial number."""
    private, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")])
    now, number = datetime.now(UTC), x509.random_serial_number()
    builder = x509.CertificateBuilder(name, name, private.public_key(), number, now, now + timedelta(days=1))
    certificate.write_bytes(builder.sign(private, hashes.SHA256()).public_bytes(Encoding.PEM))
    key.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return number


def serial(server: Coordinator) -> int:
    text = ssl.get_server_certificate(("127.0.0.1", server.port))
    return x509.load_pem_x509_certificate(text.encode()).serial_number


# --- commands that show things


def shown(federation: Federation, *words: str) -> str:
    """What a command writes to a pipe."""
    done = CliRunner().invoke(app, words, env=federation.server.environment(), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_table_in_a_pipe_has_whole_digests(solved: tuple[Federation, str]) -> None:
    federation, workflow = solved
    ids = {"expert": federation.expert("law").digest, "body": federation.body().digest, "workflow": workflow}
    for noun, id_ in ids.items():
        assert f" {id_} " in shown(federation, noun, *([] if noun == "body" else ["list"]))


def test_commands_take_an_alias_and_the_start_of_a_digest(solved: tuple[Federation, str]) -> None:
    federation, workflow = solved
    assert json.loads(shown(federation, "version", "show", "champion", "--json"))["version"]["number"] == 1
    assert json.loads(shown(federation, "version", "table", "champion", "--json"))["missing"] == ["law"]
    assert "audited" in shown(federation, "version", "note", "champion", "--tag", "audited")
    assert json.loads(shown(federation, "body", federation.body().digest[:6], "--json"))["current"]
    refused = CliRunner().invoke(app, ["workflow", "retry", workflow[:20]], env=federation.server.environment())
    assert "no workflow" not in str(refused.exception)


# --- audit


def exported(server: Coordinator) -> list[AuditEntry]:
    lines = moerge("audit", "export", **server.environment()).splitlines()
    return [AuditEntry.model_validate_json(line) for line in lines]


def test_the_audit_log_has_mutating_calls_with_a_token(server: Coordinator) -> None:
    headers = bearer(server)
    body = {"name": "audited", "domains": ["audited"]}
    for id_, token, sent in (
        ("audit-good", headers, body),
        ("audit-wrong", headers, {}),
        ("audit-nobody", {}, body),
        ("audit-reading", headers, None),
    ):
        method = "GET" if sent is None else "POST"
        httpx.request(method, f"{server.url}/v1/owners", headers={**token, "X-Request-Id": id_}, json=sent)
    rows = {row.request: row for row in exported(server) if row.request.startswith("audit-")}
    assert rows.keys() == {"audit-good", "audit-wrong"}
    good, wrong = rows["audit-good"], rows["audit-wrong"]
    assert (good.token, good.role, good.owner, good.status, good.problem) == (1, Role.OPERATOR, None, 201, None)
    assert (good.method, good.path) == ("POST", "/v1/owners")
    assert (wrong.token, wrong.status, wrong.problem) == (1, 422, "urn:moerge:problem:invalid-request")


def test_the_audit_log_leaves_single_chunks_out(server: Coordinator) -> None:
    member = join(server, "audit-owner", Path("nowhere"))
    member.client.close()
    raw = RawClient(server.url, member.token)
    upload = raw.open(announced(b"chunk"))
    raw.put(upload, b"chunk")
    raw.commit(upload)
    calls = [(row.method, row.path) for row in exported(server) if row.owner == member.name]
    assert calls == [("POST", "/v1/uploads"), ("POST", f"/v1/uploads/{upload.id}/commit")]


def test_the_audit_log_has_pages(server: Coordinator) -> None:
    with httpx.Client(headers=bearer(server)) as operator:
        for _ in range(120):
            operator.post(f"{server.url}/v1/owners")
    numbers = [row.number for row in exported(server)]
    assert len(numbers) >= 120
    assert numbers == sorted(set(numbers))
    after = numbers[10]
    later = moerge("audit", "export", "--after", after, **server.environment()).splitlines()
    assert [json.loads(line)["number"] for line in later][: len(numbers) - 11] == numbers[11:]


def test_a_full_storage_is_reported_until_there_is_room(tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk."""
    with coordinator(tmp_path / "home") as server:
        member = join(server, "law", tmp_path)
        limits = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
        path = tmp_path / "file"
        path.write_bytes(os.urandom(3_000_000))
        before = files_below(server)
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (2_000_000, limits[1]))
        with pytest.raises(CoordinatorError) as caught:
            member.client.upload(path, SILENT, title="file")
        assert (caught.value.problem().status, caught.value.type) == (507, "urn:moerge:problem:storage-full")
        assert files_below(server) == before
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, limits)
        assert member.client.upload(path, SILENT, title="file").size == 3_000_000
        member.client.close()


def test_a_success_that_can_t_be_audited_is_a_failure(server: Coordinator) -> None:
    def add() -> int:
        return httpx.post(f"{server.url}/v1/owners", headers=bearer(server), json=owner).status_code

    owner = NewOwner(name="unrecorded", domains=["unrecorded"]).model_dump()
    with closing(sqlite3.connect(server.home / "coordinator.sqlite")) as database:
        database.execute("CREATE TRIGGER no_row BEFORE INSERT ON audit BEGIN SELECT RAISE(ABORT, 'no row'); END")
        database.commit()
        assert add() == 500
        database.execute("DROP TRIGGER no_row")
        database.commit()
    assert add() == 201


# --- stopping


def test_at_sigterm_running_calls_end_and_new_ones_are_refused(tmp_path: Path) -> None:
    server = Coordinator(tmp_path / "home")
    server.start()
    with server.client() as operator:
        operator.add_owner(NewOwner(name="slow", domains=["slow"]))
        token = operator.add_token(NewToken(role=Role.OWNER, owner="slow")).secret
    data = b"0123456789"
    digest = sha256_hex(data)
    headers = {**bearer(server, token), "Content-Digest": content_digest(digest), "Content-Length": "10"}
    upload = RawClient(server.url, token).open(announced(data))
    slow = http.client.HTTPConnection("127.0.0.1", server.port)
    slow.putrequest("PUT", f"/v1/uploads/{upload.id}/chunks/{digest}")
    for name, value in headers.items():
        slow.putheader(name, value)
    before = files_below(server)
    slow.endheaders(data[:5])
    eventually(lambda: files_below(server) != before)  # the chunk's file: the server reads
    server.send(signal.SIGTERM)
    eventually(lambda: httpx.get(f"{server.url}/readyz").status_code == 503)
    response = httpx.get(f"{server.url}/readyz")
    assert (response.status_code, response.json()["field"]) == (503, "process")
    refused = httpx.get(f"{server.url}/v1/identity", headers=bearer(server))
    assert (refused.status_code, refused.json()["type"]) == (503, "urn:moerge:problem:unavailable")
    slow.send(data[5:])
    assert slow.getresponse().status == 204
    slow.close()
    assert server.ended(30) == 0


def test_a_workflow_cut_by_sigterm_is_done_at_the_next_start(tmp_path: Path) -> None:
    with federation_of(tmp_path, "law") as federation:
        federation.contribute(federation.body())
        server, operator, log = federation.server, federation.operator, tmp_path / "log"
        server.stop()
        cut = start_worker(["coordinator", "serve", str(server.home), "--port", str(server.port)], {}, log, STAYS)
        eventually(lambda: bool(address_in(log)))
        workflow = operator.solve_version(NewVersion())
        eventually((server.home / "solving").exists)
        cut.terminate()
        assert ended(cut, 30) == 0
        with closing(sqlite3.connect(server.home / "workflows.sqlite")) as database:
            query = "SELECT status FROM workflow_status WHERE workflow_uuid = ?"
            assert database.execute(query, (workflow.id,)).fetchone() == ("PENDING",)
        server.start()
        assert wait(operator, workflow) == "1"
