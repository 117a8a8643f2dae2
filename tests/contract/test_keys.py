"""Owners' keys: joining, signatures, rotation, loss."""

import base64
import json
import os
import pty
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from moerge.cli.common import wait
from moerge.errors import CoordinatorError, MoergeError
from moerge.files import file_sha256
from moerge.models.expert_folder import expert_digest
from moerge_proto.bodies import Body
from moerge_proto.contributions import NewContribution, signed_contribution
from moerge_proto.experts import NewExpert
from moerge_proto.owners import Owner
from moerge_proto.signatures import JoinRequest, fingerprint, in_groups, public_key_of
from moerge_proto.statistics_file import StatisticsFile
from moerge_proto.versions import NewVersion
from moerge_workers.outgoing.owner_key import (
    join_request,
    read_owner_key,
    require_approved,
    rotate,
    signature,
)
from support.federation import SILENT, Member, body_of, eventually, honest, honest_head, parted, registered
from support.models import expert
from support.processes import MOERGE, Coordinator, moerge, run_command
from support.statistics import written


def approved(server: Coordinator, home: Path, owner: str, *, replace: bool = False) -> str:
    """The token of a new owner whose key is in `home`."""
    with server.client() as operator:
        return operator.approve(
            join_request(home / f"{owner}.pem", owner, [f"{owner}-domain"]), replace=replace
        ).token.secret


def find(server: Coordinator, name: str) -> Owner:
    with server.client() as operator:
        [owner] = [item for item in operator.owners() if item.name == name]
    return owner


def active(server: Coordinator, name: str) -> list[str]:
    return [key.fingerprint for key in find(server, name).keys if key.revoked is None]


def here(path: Path) -> str:
    return fingerprint(public_key_of(read_owner_key(path)))


@contextmanager
def refused(kind: str, field: str, todo: str = "") -> Iterator[None]:
    with pytest.raises(CoordinatorError) as caught:
        yield
    assert (caught.value.type, caught.value.where) == (f"urn:moerge:problem:{kind}", field)
    assert todo in caught.value.todo


# --- joining


def test_an_owner_joins_by_two_commands(server: Coordinator, tmp_path: Path) -> None:
    init = ("worker", "init", "--owner", "hospital", "--domain", "nursing", "--domain", "medicine")
    initialised = run_command(*init, HOME=str(tmp_path))
    path = tmp_path / ".moerge" / "hospital.pem"
    shown, before, seed = in_groups(here(path)), path.read_bytes(), read_owner_key(path).private_bytes_raw()
    assert (initialised.returncode, shown in initialised.stderr) == (0, True), initialised.stderr
    assert path.stat().st_mode & 0o777 == 0o600
    assert seed.hex() not in json.dumps(JoinRequest.of_line(initialised.stdout).model_dump(mode="json"))
    again = run_command(*init, HOME=str(tmp_path))
    assert path.read_bytes() == before
    assert JoinRequest.of_line(again.stdout).public_key == JoinRequest.of_line(initialised.stdout).public_key

    done = run_command("owner", "approve", "-", stdin=initialised.stdout, **server.environment())
    assert done.returncode == 0, done.stderr
    assert "Owner: hospital\nDomains: medicine, nursing\n" in done.stderr
    assert shown in done.stderr
    with server.client(done.stdout.strip()) as client:
        assert client.identity().domains == ["medicine", "nursing"]
    assert shown[:19] in moerge("owner", "list", COLUMNS="200", **server.environment())
    assert shown in moerge("owner", "show", "hospital", COLUMNS="200", **server.environment())
    kept = [item.read_bytes() for item in server.home.rglob("*") if item.is_file()]
    assert not any(secret in content for content in kept for secret in (seed, before)), "the key never leaves"


@pytest.mark.parametrize("answer", ["n", "y"])
def test_on_a_terminal_the_operator_compares_fingerprints(server: Coordinator, tmp_path: Path, answer: str) -> None:
    name = f"asked-{answer}"
    request = join_request(tmp_path / f"{name}.pem", name, [f"{name}-domain"])
    terminal, inside = pty.openpty()
    os.write(terminal, f"{answer}\n".encode())
    command = [*MOERGE, "owner", "approve", request.line()]
    done = subprocess.run(  # noqa: S603  # our own command
        command, stdin=inside, capture_output=True, text=True, env={**os.environ, **server.environment()}, check=False
    )
    os.close(inside)
    os.close(terminal)
    assert "Has the owner told you this fingerprint" in done.stderr
    with server.client() as operator:
        assert (name in {owner.name for owner in operator.owners()}) == (answer == "y")
    assert done.stdout.startswith("moerge_") == (answer == "y")


def test_a_lost_key_is_replaced_by_the_operator(server: Coordinator, tmp_path: Path) -> None:
    token = approved(server, tmp_path / "old", "lost")
    with refused("conflict", "replace", "--replace"):
        approved(server, tmp_path / "new", "lost")
    approved(server, tmp_path / "new", "lost", replace=True)
    assert active(server, "lost") == [here(tmp_path / "new" / "lost.pem")]
    with server.client(token) as client, pytest.raises(MoergeError, match=r"this key is .*, the approved one is"):
        require_approved(client, tmp_path / "old")


def test_an_owner_without_a_key_may_get_one_later(server: Coordinator, tmp_path: Path) -> None:
    token = moerge("owner", "add", "plain", "--domain", "plain-domain", **server.environment())
    with server.client(token) as client:
        assert not require_approved(client, tmp_path)
        join_request(tmp_path / "plain.pem", "plain", ["plain-domain"])
        with pytest.raises(MoergeError, match="the operator has not approved this key"):
            require_approved(client, tmp_path)
        approved(server, tmp_path, "plain", replace=True)
        assert require_approved(client, tmp_path)


def test_an_owner_is_last_seen_at_its_last_call(server: Coordinator, tmp_path: Path) -> None:
    token = approved(server, tmp_path, "seen")
    times = [find(server, "seen").seen]
    with server.client(token) as client:
        for _ in range(2):
            client.identity()
            times.append(find(server, "seen").seen)
    first, second, third = times
    assert first is None
    assert second is not None
    assert third is not None
    assert find(server, "seen").created <= second < third


# --- signatures

Fleet = tuple[Member, Path, Body]


@pytest.fixture(scope="module")
def fleet(server: Coordinator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """An owner with a key and a ready expert, the key's folder, and the body."""
    folder = tmp_path_factory.mktemp("signed")
    with server.client() as operator:
        token = operator.approve(join_request(folder / "firm.pem", "firm", ["law"])).token.secret
    body = body_of(server, folder / "seed")
    member = Member("firm", "law", token, server.client(token), expert(folder / "law", 1))
    member = parted(server, member, body, fitted=False)
    member.register()
    yield member, folder, body
    member.client.close()


def uploaded(server: Coordinator, member: Member, body: Body, path: Path, first: int) -> str:
    written(path, *honest(server, member, body, first=first))
    return member.client.upload(path, SILENT, title="contribution").sha256


def contribution(home: Path, path: Path) -> NewContribution:
    """An uploaded file's contribution, signed by the key in `home`."""
    with StatisticsFile(path) as file:
        facts = signed_contribution(file.manifest, file_sha256(path))
    return NewContribution(sha256=facts.digest, signature=signature(home, facts))


def test_a_contribution_needs_its_owner_s_signature(server: Coordinator, fleet: Fleet, tmp_path: Path) -> None:
    member, home, body = fleet
    digest = uploaded(server, member, body, tmp_path / "file", 0)
    with refused("forbidden", "signature", "run the worker on the machine"):
        member.client.contribute(NewContribution(sha256=digest))
    assert not list(member.client.contributions())
    new = contribution(home, tmp_path / "file")
    kept = member.client.contribute(new)
    assert (kept.signature, kept.fingerprint) == (new.signature, here(home / "firm.pem"))
    shown = moerge("contribution", "list", COLUMNS="250", **server.environment())
    assert in_groups(here(home / "firm.pem")[:8]) in shown


def signed_expert(member: Member, key: Path) -> NewExpert:
    """The member's registered expert, signed by the key in this folder."""
    files = {file.name: file.sha256 for file in registered(member).files}
    new = member.new(files)
    return new.model_copy(update={"signature": signature(key, new.signed_by("firm", expert_digest(files)))})


def test_an_expert_s_signature_is_its_owner_s(fleet: Fleet, tmp_path: Path) -> None:
    member, home, _ = fleet
    join_request(tmp_path / "firm.pem", "firm", ["law"])
    with refused("forbidden", "signature", "run a worker of this release on the machine"):
        member.client.register_expert(signed_expert(member, tmp_path))
    assert member.client.expert(registered(member).digest).signature is None
    kept = member.client.register_expert(new := signed_expert(member, home))
    assert (kept.signature, kept.fingerprint) == (new.signature, here(home / "firm.pem"))


def test_a_version_has_the_signatures_of_its_inputs(server: Coordinator, fleet: Fleet, tmp_path: Path) -> None:
    member, home, body = fleet
    member.client.register_expert(signed_expert(member, home))
    written(tmp_path / "head", *honest_head(member))
    head = member.client.upload(tmp_path / "head", SILENT, title="head contribution").sha256
    member.client.contribute(contribution(home, tmp_path / "head"))
    router = uploaded(server, member, body, tmp_path / "file", 0)
    member.client.contribute(contribution(home, tmp_path / "file"))
    with server.client() as operator:
        number = int(wait(operator, operator.solve_version(NewVersion())))
        rows = operator.version_signatures(number)
    assert [(row.kind, row.digest, row.domain) for row in rows] == [("router", router, "law"), ("head", head, "law")]
    assert {row.public_key for row in rows} == {public_key_of(read_owner_key(home / "firm.pem"))}
    assert all(row.is_genuine() for row in rows)
    shown = moerge("version", "show", number, COLUMNS="200", **server.environment())
    assert shown.count(f"by key {in_groups(here(home / 'firm.pem')[:16])}") == 2
    moerge("pull", number, folder := tmp_path / "model", **server.environment())
    stated = json.loads(moerge("verify", folder, "--json"))["inputs"]
    assert {item["annotations"]["kind"]: item["annotations"]["owner"] for item in stated} == {
        **{"body": None, "seed": None, "expert": "firm", "router contribution": "firm", "head contribution": "firm"}
    }
    assert all(item["annotations"]["public_key"] == rows[0].public_key for item in stated[2:])
    told = (folder / "README.md").read_text() + (folder / "moerge.json").read_text()
    private = {"publicKey", "signature", "kind"}
    envelope = json.loads((folder / "provenance.sigstore.json").read_text())["dsseEnvelope"]
    definition = json.loads(base64.b64decode(envelope["payload"]))["predicate"]["buildDefinition"]
    for item in definition["resolvedDependencies"]:
        facts = {name: value for name, value in item["annotations"].items() if name not in private}
        assert all(value in told for value in facts.values()), "nothing about an owner but what the folder tells"
        assert item["digest"]["sha256"] in told


def test_law_3_signatures_change_no_version(server: Coordinator, fleet: Fleet, tmp_path: Path) -> None:
    """Law 3: a contribution sent again with another key's signature gives the same version."""
    member, home, body = fleet
    with server.client() as operator:
        [before] = list(operator.versions())[-1:]
        [digest] = before.lineage.contributions
        member.client.withdraw_contribution(digest)
        rotate(member.client, "firm", home / "firm.pem")
        written(tmp_path / "file", *honest(server, member, body, first=0))
        assert member.client.upload(tmp_path / "file", SILENT, title="again").sha256 == digest
        member.client.contribute(contribution(home, tmp_path / "file"))
        assert int(wait(operator, operator.solve_version(NewVersion()))) == before.number
        router, head = operator.version_signatures(before.number)
        assert router.is_genuine()
        assert head.is_genuine()
        assert router.public_key != head.public_key, "the head contribution's is by the key of its time"


# --- rotation and revocation


def test_a_rotated_key_replaces_the_old_one(server: Coordinator, fleet: Fleet, tmp_path: Path) -> None:
    member, home, _ = fleet
    path = home / "firm.pem"
    old, before = read_owner_key(path), list(member.client.contributions())
    shown = moerge("worker", "rotate", "--home", home, **server.environment(member.token))
    assert shown == f"Your key's fingerprint is now: {in_groups(here(path))}"
    assert active(server, "firm") == [here(path)] != [fingerprint(public_key_of(old))]
    assert path.stat().st_mode & 0o777 == 0o600
    assert sorted(item.name for item in home.glob("firm.pem*")) == ["firm.pem", "firm.pem.lock"]
    again = NewContribution(sha256=before[-1].digest, signature=before[-1].signature)
    assert member.client.contribute(again) == before[-1], "an accepted contribution needs no new signature"


class Deaf(BaseHTTPRequestHandler):
    """A proxy that forwards everything, but no answer to a rotation."""

    behind: str

    def _pass_on(self) -> httpx.Response:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name: self.headers[name] for name in ("Authorization", "Content-Type") if name in self.headers}
        return httpx.request(self.command, self.behind + self.path, content=body, headers=headers)

    def do_GET(self) -> None:  # the base class's name
        answer = self._pass_on()
        self.send_response(answer.status_code)
        self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    def do_POST(self) -> None:
        self._pass_on()
        threading.Event().wait(30)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@pytest.mark.parametrize("reached", [False, True], ids=["before-it-was-sent", "before-its-answer-came"])
def test_a_killed_rotation_is_finished_by_the_next_start(server: Coordinator, tmp_path: Path, *, reached: bool) -> None:
    name = f"killed-{reached}".lower()
    token, path = approved(server, tmp_path, name), tmp_path / f"{name}.pem"
    before, pending = here(path), path.with_name(f"{path.name}.next")
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), type("Between", (Deaf,), {"behind": server.url}))
    proxy.daemon_threads = True
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    if not reached:
        proxy.RequestHandlerClass.do_POST = lambda handler: threading.Event().wait(30)  # type: ignore[attr-defined]
    url = f"http://127.0.0.1:{proxy.server_address[1]}"
    environment = {**os.environ, "MOERGE_COORDINATOR": url, "MOERGE_TOKEN": token}
    process = subprocess.Popen([*MOERGE, "worker", "rotate", "--home", str(tmp_path)], env=environment)  # noqa: S603
    eventually(pending.is_file)
    if reached:
        eventually(lambda: active(server, name) != [before])
    process.kill()
    process.wait()
    proxy.shutdown()
    proxy.server_close()
    assert here(path) == before
    assert active(server, name) == [here(pending) if reached else before]

    wanted = here(pending)
    with server.client(token) as client:
        assert require_approved(client, tmp_path), "this is how a worker starts"
    assert here(path) == wanted
    assert active(server, name) == [wanted]
    assert not pending.exists()


def test_a_revoked_owner_s_contributions_stay(server: Coordinator, fleet: Fleet, tmp_path: Path) -> None:
    member, home, _ = fleet
    with server.client() as operator:
        before = list(operator.contributions())
        with pytest.raises(AssertionError, match="not confirmed: The key and tokens of firm are revoked"):
            moerge("owner", "revoke", "firm", **server.environment())
        moerge("owner", "revoke", "firm", "--yes", **server.environment())
        with pytest.raises(CoordinatorError, match="the token was revoked on"):
            member.client.identity()
        assert list(operator.contributions()) == before
        assert any(item.active for item in before)
    assert "revoked or rotated" in moerge("owner", "list", COLUMNS="200", **server.environment())
    token = moerge("owner", "add", "firm", "--domain", "law", **server.environment())
    with server.client(token) as client, pytest.raises(MoergeError, match="the operator revoked the key"):
        require_approved(client, home)
