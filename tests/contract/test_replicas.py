"""Several coordinators on one PostgreSQL database and one S3 store serve as one."""

import base64
import json
import secrets
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import cycle, repeat
from pathlib import Path

import httpx
import psycopg
import pytest

from moerge.cli.common import wait
from moerge.errors import CoordinatorError
from moerge_proto.digests import sha256_hex
from moerge_proto.experts import ExpertState
from moerge_proto.version_signatures import PROVENANCE_FILE
from moerge_proto.versions import NewVersion
from moerge_proto.workflows import Workflow, WorkflowState
from support.federation import Member, body_of, eventually, honest, join, joined, parted, send
from support.models import expert, seed_model
from support.processes import Coordinator, coordinator, moerge, run_command
from support.replicas import Replicas, replicas_of
from support.servers import Postgres, leader, settings
from support.statistics import written
from support.uploads import RawClient, announced


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres, s3_server: str) -> Iterator[Replicas]:
    with replicas_of(tmp_path_factory.mktemp("replicas"), 2, postgres, s3_server) as replicas:
        yield replicas


@pytest.fixture(scope="module")
def one(replicas: Replicas) -> Coordinator:
    return replicas.servers[0]


@pytest.fixture(scope="module")
def two(replicas: Replicas) -> Coordinator:
    return replicas.servers[1]


def solve(server: Coordinator) -> dict[str, str]:
    """Solves over everything; name -> digest of the version's files."""
    with server.client() as operator:
        version = operator.version(int(wait(operator, operator.solve_version(NewVersion()))))
        return {file.name: file.sha256 for file in version.files}


def flow(folder: Path, turns: Iterator[Coordinator]) -> dict[str, str]:
    """Two owners register and contribute, an operator solves; every step has its coordinator."""
    folder.mkdir()
    members = [joined(next(turns), domain, folder, seed) for seed, domain in enumerate(("law", "art"), start=1)]
    body = body_of(next(turns), folder / "seed")
    for member in members:
        server = next(turns)
        with server.client(member.token) as client:
            other = replace(member, client=client)
            send(other, written(folder / "contribution", *honest(server, member, body)))
        member.client.close()
    return solve(next(turns))


def statement(folder: Path) -> bytes:
    """The signed provenance of a version's folder."""
    bundle = json.loads((folder / PROVENANCE_FILE).read_text())
    return base64.b64decode(bundle["dsseEnvelope"]["payload"])


def test_law_3_replicas_in_turn_make_the_version_of_one(replicas: Replicas, tmp_path: Path) -> None:
    many = flow(tmp_path / "many", cycle(replicas.servers))
    with coordinator(tmp_path / "home") as alone:
        expected = flow(tmp_path / "alone", repeat(alone))
    assert many == expected
    for server in replicas.servers:
        folder = tmp_path / f"pulled-{server.home.name}"
        moerge("pull", 1, folder, **server.environment())
        result = {path.name: sha256_hex(path.read_bytes()) for path in folder.iterdir()}
        del result["model.sig"], result[PROVENANCE_FILE]  # ECDSA is randomised
        assert statement(folder) == statement(tmp_path / "home" / "versions" / "1")
        assert result.pop("README.md") != expected["README.md"]  # it has the date
        assert result == {name: digest for name, digest in expected.items() if name != "README.md"}
        with server.client() as operator:
            assert operator.version_report(1)
            assert [version.number for version in operator.versions()] == [1]
        assert not (server.home / "versions").exists()


def test_a_download_is_redirected_without_the_token(one: Coordinator) -> None:
    token = {"Authorization": f"Bearer {one.operator_token}"}
    with one.client() as operator:
        [version, *_] = operator.versions()
    url = f"{one.url}/v1/versions/{version.number}/files/config.json"
    answer = httpx.get(url, headers=token)
    assert (answer.status_code, answer.headers["Cache-Control"]) == (307, "no-store")
    assert sha256_hex(httpx.get(answer.headers["Location"]).content) in {file.sha256 for file in version.files}
    assert httpx.get(url).status_code == 401


@pytest.fixture
def member(one: Coordinator, tmp_path: Path) -> Iterator[Member]:
    """An owner of a domain of its own."""
    member = join(one, f"domain-{secrets.token_hex(4)}", expert(tmp_path / "expert", seed=77))
    yield member
    member.client.close()


def test_chunks_of_several_replicas_are_joined_by_one(one: Coordinator, two: Coordinator, member: Member) -> None:
    pieces = [b"first", b"second"]
    new = announced(b"firstsecond", *pieces)
    first, second = (RawClient(server.url, member.token) for server in (one, two))
    upload = first.open(new)
    for raw, piece in zip((first, second), pieces, strict=True):
        assert sha256_hex(piece) in raw.open(new).missing
        assert raw.put(upload, piece).status_code == 204
    assert first.open(new).missing == []
    assert second.commit(upload).json()["sha256"] == new.sha256


def test_an_expert_registered_everywhere_at_once_has_one_domain(replicas: Replicas, tmp_path: Path) -> None:
    folder, body = expert(tmp_path / "expert", seed=88), body_of(replicas.servers[0], tmp_path / "seed")
    members = [
        parted(server, join(server, f"many-{n}", folder), body, fitted=False)
        for n, server in enumerate(3 * replicas.servers)
    ]
    files = [member.upload_files() for member in members]
    together = threading.Barrier(len(members))

    def register(number: int) -> str:
        together.wait()
        try:
            members[number].client.register_expert(members[number].new(files[number]))
        except CoordinatorError as error:
            return error.where
        return "taken"

    with ThreadPoolExecutor(len(members)) as pool:
        answers = sorted(pool.map(register, range(len(members))))
    assert answers == ["files"] * (len(members) - 1) + ["taken"]
    with replicas.servers[0].client() as operator:
        assert len([item for item in operator.experts() if item.domain.startswith("many-")]) == 1
    for member in members:
        member.client.close()


def test_a_workflow_is_seen_from_every_replica(one: Coordinator, two: Coordinator) -> None:
    with one.client() as first, two.client() as second:
        id_ = first.solve_version(NewVersion(partial=True)).id
        wait(first, Workflow(id=id_, state=WorkflowState.RUNNING))
        assert second.workflow(id_) == first.workflow(id_)
        assert second.workflow(id_).state is WorkflowState.DONE
        assert second.solve_version(NewVersion(partial=True)).id != id_


def test_body_of_one_replica_answers_a_wait_at_the_other(
    one: Coordinator, two: Coordinator, member: Member, tmp_path: Path
) -> None:
    with one.client() as operator, two.client(member.token) as client, ThreadPoolExecutor(1) as pool:
        seen = client.demands(member.dense)
        waits = pool.submit(client.demands, member.dense, seen)
        moerge("coordinator", "seed", one.home, seed_model(tmp_path / "seed", rms_norm_eps=1e-3))
        assert waits.result(30).body == operator.body("current").digest != seen.body


def refusal(home: Path, text: str) -> str:
    """The error of a coordinator that must not start."""
    home.mkdir()
    (home / "coordinator.toml").write_text(text)
    done = run_command("coordinator", "serve", home, "--port", 0)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_replica_without_the_shared_store_does_not_start(replicas: Replicas, tmp_path: Path) -> None:
    error = refusal(tmp_path / "third", settings(replicas.database))
    assert "another coordinator is using this database" in error
    assert "same s3 store" in error


def test_an_absent_database_is_named_without_its_password(tmp_path: Path) -> None:
    error = refusal(tmp_path / "home", settings("postgresql://moerge:secret@127.0.0.1:1/moerge"))
    assert "database: no connection" in error
    assert "secret" not in error


def test_a_home_is_made_on_postgresql_once(replicas: Replicas, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "coordinator.toml").write_text(settings(replicas.database, replicas.place))
    assert "already a coordinator's home" in run_command("coordinator", "init", tmp_path / "home").stderr


def test_a_leader_without_its_lock_ends_and_another_leads(postgres: Postgres, s3_server: str, tmp_path: Path) -> None:
    with replicas_of(tmp_path, 2, postgres, s3_server) as replicas:
        (one, two), process = replicas.servers, locked_by(replicas.database)
        assert replicas.led() is one
        with psycopg.connect(replicas.database, autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(%s)", (process,))
        assert one.ended(10) != 0
        assert "lost the right to run the workflows" in (one.home / "log").read_text()
        assert replicas.led(one) is two
        member = joined(two, "law", tmp_path, 1)
        with two.client() as operator:
            assert [item.state for item in operator.experts()] == [ExpertState.READY]
        member.client.close()


def test_without_the_database_calls_are_refused_as_unavailable(
    postgres: Postgres, s3_server: str, tmp_path: Path
) -> None:
    with (
        replicas_of(tmp_path, 2, postgres, s3_server) as replicas,
        psycopg.connect(postgres.url, autocommit=True) as server,
    ):
        one, two = replicas.servers
        assert replicas.led() is one
        name = replicas.database.partition("?")[0].rpartition("/")[2]
        token = {"Authorization": f"Bearer {one.operator_token}"}
        server.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))
        assert one.ended(10) != 0  # it led
        for method, path in (("GET", "/readyz"), ("GET", "/v1/experts"), ("POST", "/v1/owners")):
            answer = httpx.request(method, f"{two.url}{path}", headers=token, json={}, timeout=60)
            assert (answer.status_code, answer.json()["type"]) == (503, "urn:moerge:problem:unavailable"), path
        server.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        eventually(lambda: httpx.get(f"{two.url}/readyz").status_code == 200)
        with two.client() as operator:
            assert list(operator.experts()) == []


def locked_by(database: str) -> int:
    """The server's process that holds the leader's lock, once there is one."""
    eventually(lambda: leader(database) is not None)
    result = leader(database)
    assert result is not None
    return result[0]
