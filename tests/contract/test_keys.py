"""Owners join with a key, sign what they contribute, rotate the key and lose it, by the commands that they type."""

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
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from moerge.cli.common import wait
from moerge.errors import CoordinatorError, MoergeError
from moerge_proto.contributions import NewContribution
from moerge_proto.digests import sha256_hex
from moerge_proto.owners import Approval, Owner
from moerge_proto.signatures import JoinRequest, Rotation, fingerprint, in_groups, public_key_of, sign_contribution
from moerge_proto.trunks import Trunk
from moerge_proto.versions import NewVersion
from moerge_workers.leaving.owner_key import join_request, read_owner_key, require_approved, rotate, signature
from support.federation import SILENT, Member, eventually, honest, honest_trunk, merge
from support.models import expert
from support.processes import MOERGE, Coordinator, coordinator, moerge, run_command
from support.statistics import written


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    with coordinator(tmp_path_factory.mktemp("keys") / "home") as running:
        yield running


def approved(server: Coordinator, home: Path, owner: str, *, replace: bool = False) -> str:
    """The token of an owner whose key lies in `home`, by the library that the commands use."""
    with server.client() as operator:
        return operator.approve(
            join_request(home / f"{owner}.pem", owner, [f"{owner}-domain"]), replace=replace
        ).token.secret


def find(server: Coordinator, name: str) -> Owner:
    with server.client() as operator:
        [owner] = [each for each in operator.owners() if each.name == name]
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


def test_an_owner_joins_by_two_commands_and_its_key_never_leaves(server: Coordinator, tmp_path: Path) -> None:
    asked = run_command(
        "worker", "init", "--owner", "hospital", "--domain", "nursing", "--domain", "medicine", HOME=str(tmp_path)
    )
    path = tmp_path / ".moerge" / "hospital.pem"
    assert asked.returncode == 0, asked.stderr
    [line] = asked.stdout.splitlines()
    told = in_groups(here(path))
    assert told in asked.stderr
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text().startswith("-----BEGIN PRIVATE KEY-----")
    seed = read_owner_key(path).private_bytes_raw()
    assert seed.hex() not in json.dumps(JoinRequest.of_line(line).model_dump(mode="json"))

    before = path.read_bytes()
    again = run_command(
        "worker", "init", "--owner", "hospital", "--domain", "medicine", "--domain", "nursing", HOME=str(tmp_path)
    )
    assert path.read_bytes() == before
    assert JoinRequest.of_line(again.stdout).public_key == JoinRequest.of_line(line).public_key

    done = run_command("owner", "approve", "-", said=line, **server.environment())
    assert done.returncode == 0, done.stderr
    assert "Owner: hospital\nDomains: medicine, nursing\n" in done.stderr
    assert told in done.stderr
    with server.client(done.stdout.strip()) as client:
        identity = client.identity()
        assert (identity.owner, identity.domains) == ("hospital", ["medicine", "nursing"])
        assert identity.key is not None
        assert in_groups(identity.key.fingerprint) == told
    listed = moerge("owner", "list", COLUMNS="200", **server.environment())
    assert told[:19] in listed
    shown = moerge("owner", "show", "hospital", COLUMNS="200", **server.environment())
    assert told in shown
    assert JoinRequest.of_line(line).public_key in shown
    kept = [each.read_bytes() for each in server.home.rglob("*") if each.is_file()]
    assert not any(secret in content for content in kept for secret in (seed, before))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--owner", "../up", "--domain", "law"], "--owner: '../up' is not a valid name"),
        (["--owner", "up", "--domain", "Law"], "--domain: 'Law' is not a valid name"),
    ],
)
def test_what_is_no_name_is_refused_before_a_key_is_made(tmp_path: Path, given: list[str], told: str) -> None:
    done = run_command("worker", "init", *given, "--home", tmp_path / "keys")
    assert done.returncode == 1
    assert told in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_damaged_request_is_refused_before_the_coordinator_is_asked() -> None:
    done = run_command(
        "owner", "approve", "moerge-join-1.eyJ", MOERGE_COORDINATOR="https://nowhere.invalid", MOERGE_TOKEN="t"
    )
    assert done.returncode == 1
    assert "REQUEST: the request is damaged" in done.stderr
    assert "what to do: ask the owner to run `moerge worker init` again" in done.stderr


@pytest.mark.parametrize("answer", ["n", "y"])
def test_on_a_terminal_the_operator_compares_fingerprints_first(
    server: Coordinator, tmp_path: Path, answer: str
) -> None:
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
        assert (name in {each.name for each in operator.owners()}) == (answer == "y")
    assert done.stdout.startswith("moerge_") == (answer == "y")


def test_the_coordinator_itself_refuses_what_is_forged(server: Coordinator, tmp_path: Path) -> None:
    headers = {"Authorization": f"Bearer {server.operator_token}"}
    request = join_request(tmp_path / "forger.pem", "forger", ["forgery"])
    for change, name, field in (
        ({"domains": ["medicine", "forgery"]}, "forger", "request.signature"),
        ({}, "another", "request.owner"),
    ):
        body = Approval(request=request.model_copy(update=change)).model_dump(mode="json")
        response = httpx.post(f"{server.url}/v1/owners/{name}/approve", headers=headers, json=body)
        assert (response.status_code, response.json()["field"]) == (422, field)
    with server.client() as operator:
        assert not {"forger", "another"} & {each.name for each in operator.owners()}


def test_a_known_owner_gets_another_key_only_when_the_operator_says_so(server: Coordinator, tmp_path: Path) -> None:
    """A lost key; the token of the machine that lost it goes on."""
    token = approved(server, tmp_path / "old", "lost")
    with refused("conflict", "replace", "--replace"):
        approved(server, tmp_path / "new", "lost")
    assert active(server, "lost") == [here(tmp_path / "old" / "lost.pem")]
    approved(server, tmp_path / "new", "lost", replace=True)
    assert active(server, "lost") == [here(tmp_path / "new" / "lost.pem")]
    with server.client(token) as client, pytest.raises(MoergeError, match=r"this key is .*, the approved one is"):
        require_approved(client, tmp_path / "old")
    with refused("conflict", "request.public_key", "make a new key"):
        approved(server, tmp_path / "old", "lost", replace=True)


def test_an_owner_without_a_key_may_get_one_later(server: Coordinator, tmp_path: Path) -> None:
    token = moerge("owner", "add", "plain", "--domain", "plain-domain", **server.environment())
    with server.client(token) as client:
        assert not require_approved(client, tmp_path)
        with refused("conflict", "replace"):
            approved(server, tmp_path, "plain")
        with pytest.raises(MoergeError, match="the operator has not approved this key"):
            require_approved(client, tmp_path)
        approved(server, tmp_path, "plain", replace=True)
        assert require_approved(client, tmp_path)


def test_an_owner_was_last_seen_when_it_last_called(server: Coordinator, tmp_path: Path) -> None:
    token = approved(server, tmp_path, "seen")
    assert find(server, "seen").seen is None
    with server.client(token) as client:
        client.identity()
        first = find(server, "seen").seen
        client.identity()
    second = find(server, "seen").seen
    assert first is not None
    assert second is not None
    assert find(server, "seen").created <= first < second


# --- signatures


@pytest.fixture(scope="module")
def fleet(server: Coordinator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Member, Path, Trunk]]:
    """An owner with a key whose expert is ready, where its key lies, and a trunk."""
    folder = tmp_path_factory.mktemp("signed")
    with server.client() as operator:
        token = operator.approve(join_request(folder / "firm.pem", "firm", ["law"])).token.secret
    member = Member("firm", "law", token, server.client(token), expert(folder / "law", 1))
    member.register()
    yield member, folder, merge(server)
    member.client.close()


def uploaded(server: Coordinator, member: Member, trunk: Trunk, path: Path, first: int) -> str:
    written(path, *honest(server, member, trunk, first=first))
    return member.client.upload(path, SILENT, title="contribution").sha256


def test_a_contribution_without_the_owner_s_signature_is_refused_and_with_it_kept(
    server: Coordinator, fleet: tuple[Member, Path, Trunk], tmp_path: Path
) -> None:
    member, home, trunk = fleet
    digest = uploaded(server, member, trunk, tmp_path / "file", 0)
    for forged in (None, sign_contribution(Ed25519PrivateKey.generate(), "firm", digest)):
        with refused("forbidden", "signature", "run the worker on the machine"):
            member.client.contribute(NewContribution(sha256=digest, signature=forged))
    assert not list(member.client.contributions())

    signed = signature(home, "firm", digest)
    kept = member.client.contribute(NewContribution(sha256=digest, signature=signed))
    assert (kept.signature, kept.fingerprint) == (signed, here(home / "firm.pem"))
    assert list(member.client.contributions()) == [kept]
    assert member.client.contribute(NewContribution(sha256=digest, signature=signed)) == kept
    shown = moerge("contribution", "list", COLUMNS="250", **server.environment())
    assert in_groups(here(home / "firm.pem")[:8]) in shown


def test_a_version_tells_who_signed_what_it_was_made_of_and_anyone_can_check_it(
    server: Coordinator, fleet: tuple[Member, Path, Trunk], tmp_path: Path
) -> None:
    member, home, _ = fleet
    written(tmp_path / "trunk-contribution", *honest_trunk(member))
    digest = member.client.upload(tmp_path / "trunk-contribution", SILENT, title="trunk contribution").sha256
    with refused("forbidden", "signature", "run the worker on the machine with that key"):
        member.client.contribute(NewContribution(sha256=digest))
    signed = NewContribution(sha256=digest, signature=signature(home, "firm", digest))
    assert member.client.contribute(signed).fingerprint == here(home / "firm.pem")
    trunk = merge(server, method="regmean")
    router = uploaded(server, member, trunk, tmp_path / "file", 0)
    member.client.contribute(NewContribution(sha256=router, signature=signature(home, "firm", router)))
    with server.client() as operator:
        number = int(wait(operator, operator.solve_version(NewVersion())))
        found = operator.version_signatures(number)
    assert [(each.kind, each.digest, each.domain) for each in found] == [
        ("router", router, "law"),
        ("trunk", digest, "law"),
    ]
    assert {each.public_key for each in found} == {public_key_of(read_owner_key(home / "firm.pem"))}
    assert all(each.is_genuine() for each in found)
    shown = moerge("version", "show", number, COLUMNS="200", **server.environment())
    assert shown.count(f"by key {in_groups(here(home / 'firm.pem')[:16])}") == 2


def test_signatures_don_t_change_what_a_version_is(
    server: Coordinator, fleet: tuple[Member, Path, Trunk], tmp_path: Path
) -> None:
    """Law 3: withdrawn, and sent again with another key's signature, the same contribution gives the same version."""
    member, home, _ = fleet
    with server.client() as operator:
        [before] = list(operator.versions())[-1:]
        [digest] = before.lineage.contributions
        member.client.withdraw_contribution(digest)
        rotate(member.client, "firm", home / "firm.pem")
        written(tmp_path / "file", *honest(server, member, merge(server, method="regmean"), first=0))
        assert member.client.upload(tmp_path / "file", SILENT, title="again").sha256 == digest
        member.client.contribute(NewContribution(sha256=digest, signature=signature(home, "firm", digest)))
        assert int(wait(operator, operator.solve_version(NewVersion()))) == before.number
        router, trunk = operator.version_signatures(before.number)
        assert router.is_genuine()
        assert trunk.is_genuine()
        assert router.public_key != trunk.public_key, "the trunk contribution's is by the key of its time"


# --- rotation and revocation


def test_after_a_rotation_the_new_key_signs_and_the_old_one_no_more(
    server: Coordinator, fleet: tuple[Member, Path, Trunk], tmp_path: Path
) -> None:
    member, home, _ = fleet
    path = home / "firm.pem"
    old, before = read_owner_key(path), list(member.client.contributions())
    told = moerge("worker", "rotate", "--home", home, **server.environment(member.token))
    assert told == f"Your key's fingerprint is now: {in_groups(here(path))}"
    assert active(server, "firm") == [here(path)] != [fingerprint(public_key_of(old))]
    assert path.stat().st_mode & 0o777 == 0o600
    assert sorted(each.name for each in home.glob("firm.pem*")) == ["firm.pem", "firm.pem.lock"]

    trunk = member.client.current_trunk()
    assert trunk is not None
    digest = uploaded(server, member, trunk, tmp_path / "file", 77)
    with refused("forbidden", "signature", "with the owner's key"):
        member.client.contribute(NewContribution(sha256=digest, signature=sign_contribution(old, "firm", digest)))
    assert list(member.client.contributions()) == before
    again = NewContribution(sha256=before[-1].digest, signature=sign_contribution(old, "firm", before[-1].digest))
    assert member.client.contribute(again) == before[-1], "the same contribution again is a no-op, whatever the key"
    new = NewContribution(sha256=digest, signature=signature(home, "firm", digest))
    assert member.client.contribute(new).fingerprint == here(path)


def test_a_rotation_needs_the_owner_s_token_and_both_keys(server: Coordinator, tmp_path: Path) -> None:
    token, foreign = approved(server, tmp_path, "turner"), approved(server, tmp_path, "stranger")
    old, new = read_owner_key(tmp_path / "turner.pem"), Ed25519PrivateKey.generate()
    asked = Rotation.make(old, new, "turner")
    with server.client(foreign) as client, refused("forbidden", "owner"):
        client.rotate_key(asked)
    with server.client(token) as client:
        with refused("invalid-request", "new_signature"):
            client.rotate_key(asked.model_copy(update={"new_signature": asked.old_signature}))
        with refused("conflict", "old_key", "moerge worker init"):
            client.rotate_key(Rotation.make(new, Ed25519PrivateKey.generate(), "turner"))
        assert active(server, "turner") == [here(tmp_path / "turner.pem")]
        assert client.rotate_key(asked).keys[-1].public_key == asked.new_key


class Deaf(BaseHTTPRequestHandler):
    """Hands a rotation on to the coordinator, and never its answer back; everything else it answers."""

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
def test_a_rotation_that_is_killed_is_finished_by_the_next_start(
    server: Coordinator, tmp_path: Path, *, reached: bool
) -> None:
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


def test_a_revoked_owner_can_do_nothing_new_and_what_it_contributed_stays(
    server: Coordinator, fleet: tuple[Member, Path, Trunk], tmp_path: Path
) -> None:
    member, home, _ = fleet
    with server.client() as operator:
        before = list(operator.contributions())
        with pytest.raises(AssertionError, match="not confirmed: The key and tokens of firm are revoked"):
            moerge("owner", "revoke", "firm", **server.environment())
        for _ in range(2):
            moerge("owner", "revoke", "firm", "--yes", **server.environment())
        with pytest.raises(CoordinatorError, match="the token was revoked on"):
            member.client.identity()
        assert list(operator.contributions()) == before
        assert any(each.active for each in before)
        assert active(server, "firm") == []
        assert "revoked or rotated" in moerge("owner", "list", COLUMNS="200", **server.environment())
        token = moerge("owner", "add", "firm", "--domain", "law", **server.environment())
        with server.client(token) as client:
            with pytest.raises(MoergeError, match="the operator revoked the key"):
                require_approved(client, home)
            digest = sha256_hex(b"new")
            for signed in (None, signature(home, "firm", digest)):
                with refused("forbidden", "signature", "ask the operator for the reason"):
                    client.contribute(NewContribution(sha256=digest, signature=signed))
            with refused("conflict", "request.public_key"):
                operator.approve(join_request(home / "firm.pem", "firm", ["law"]), replace=True)
            operator.approve(join_request(tmp_path / "firm.pem", "firm", ["law"]), replace=True)
            assert require_approved(client, tmp_path)
        with refused("not-found", "name"):
            operator.revoke_owner("nobody")
