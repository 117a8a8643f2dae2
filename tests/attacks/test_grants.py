"""Attacks on grants by readers, owners and a coordinator: who has no grant of an expert gets no bytes of it."""

import json
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest

from moerge.client.client import Client
from moerge.client.pull import pull
from moerge.client.signatures import verify_folder
from moerge.client.version_key import read_version_key
from moerge.errors import CoordinatorError, MoergeError
from moerge_coordinator.operation.verify import verify
from moerge_coordinator.settings import read_settings
from moerge_coordinator.storage.database import open_database
from moerge_coordinator.storage.stores import stores
from moerge_coordinator.storage.version_key import KEY_FILE
from moerge_proto.owners import NewToken, Role
from moerge_proto.recipes import SolveOptions
from moerge_proto.version_names import part_digest
from moerge_proto.version_signatures import SignedVersion, sign_version
from support.dashboard import signed_in
from support.federation import SILENT, Federation, eventually, federation_of
from support.processes import run_command

EXPERT, ROUTER, HEAD = "model-expert-0000{}.safetensors", "model-router.safetensors", "model-head.safetensors"
DOMAINS = "law", "art", "code"
WINDOW = 48
Send = Callable[[httpx.Request], httpx.Response]
HREF = re.compile(r'(?:href|src|action)="([^"#]+)')


@dataclass
class Site:
    """Versions 1 and 2 of law, art and code; law is granted to the group clinic, code to all, art to ben and clinic.

    anna is of the clinic, and has pulled both versions; ben has their parts of art and code; others have code alone.
    """

    federation: Federation
    tokens: dict[str, str]

    @property
    def home(self) -> Path:
        return self.federation.server.home

    def client(self, name: str, **how: Any) -> Client:
        return Client(self.federation.server.url, self.tokens[name], patience=20, **how)

    def add(self, name: str) -> None:
        """A new reader of that name."""
        self.tokens[name] = self.federation.operator.add_token(NewToken(role=Role.READER, name=name)).secret

    def part(self, *domains: str, number: int = 1) -> str:
        """The name of the part with the experts of these domains."""
        lineage = self.federation.operator.version(number).lineage
        pairs = zip(lineage.domains, lineage.experts, strict=True)
        return f"{number}+{part_digest([expert for domain, expert in pairs if domain in domains])}"

    def secrets(self, *closed: str) -> dict[str, bytes]:
        """Windows of the MLPs of these domains, and of the solved files of the versions with them."""
        found = {}
        for number, name in (
            (1, ROUTER),
            (2, ROUTER),
            (1, HEAD),
            *((1, EXPERT.format(DOMAINS.index(one))) for one in closed),
        ):
            data = (self.federation.version(number) / name).read_bytes()
            begin = 8 + int.from_bytes(data[:8], "little")
            for place in (begin, (begin + len(data)) // 2, len(data) - WINDOW):
                found[f"{name} of {number} at {place}"] = data[place : place + WINDOW]
        return found

    def leaks(self, folder: Path, *closed: str) -> list[str]:
        """The files below a folder, hidden ones too, with MLPs of these domains."""
        windows = [window for name, window in self.secrets(*closed).items() if "expert" in name]
        files = [path for path in folder.rglob("*") if path.is_file()]
        return [str(path) for path in files if any(window in path.read_bytes() for window in windows)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with federation_of(tmp_path_factory.mktemp("grants"), *DOMAINS) as federation:
        federation.contribute(federation.body())
        federation.contribute_heads()
        federation.solve()
        federation.solve(options=SolveOptions(ridge_lambda=7))
        federation.operator.promote("champion", 1)
        tokens = {"operator": federation.server.operator_token}
        groups = {"anna": ["clinic"]}
        for name in ("anna", "ben", "law-owner", "law", "unnamed"):
            new = NewToken(role=Role.READER, name=None if name == "unnamed" else name, groups=groups.get(name, []))
            tokens[name] = federation.operator.add_token(new).secret
        tokens["metrics"] = federation.operator.add_token(NewToken(role=Role.METRICS)).secret
        tokens |= {f"owner of {domain}": member.token for domain, member in federation.members.items()}
        grant(federation, "law", "clinic")
        for name in ("ben", "clinic"):
            grant(federation, "art", name)
        grant(federation, "code", "all")
        for number in (1, 2):
            for workflow in federation.operator.make_parts(number):
                federation.operator.wait(workflow)
        yield Site(federation, tokens)


def grant(federation: Federation, domain: str, reader: str, until: datetime | None = None) -> None:
    federation.members[domain].client.grant(domain, reader, until)


def revoke(federation: Federation, domain: str, reader: str) -> None:
    federation.members[domain].client.revoke_grant(domain, reader)


def values_of(site: Site) -> dict[str, list[str]]:
    """Values of each parameter of a path: all that exist, and tricks."""
    federation = site.federation
    files = [file.name for file in federation.operator.version(1).files]
    parts = [
        f"{of}+{part}" for of, part in rows(federation, "SELECT part_of, part FROM versions WHERE part IS NOT NULL")
    ]
    assert len(parts) >= 4
    numbers = [str(number) for (number,) in rows(federation, "SELECT number FROM versions")]
    name = site.part("art", "code")
    tricks = [
        "champion", "current", "0", "01", "-1", "1.0", "1e0", "1+", f"1+{'0' * 16}", f"01{name[1:]}", f"3{name[1:]}",
        name.upper(), f"{name}+{name[2:]}", name.replace("+", "%20"), name.replace("+", "%2B"), f"1;{name}", "%D9%A1",
        name.replace("+", "%252B"), f"{name}%00", f"{name}%0A", f"{name}%2F..%2F1", f"1%2F..%2F{name}", "..%2F1",
        "1" * 300, f"1+{'a' * 3000}",
    ]  # fmt: skip
    digests = sorted({file.sha256 for number in (1, 2) for file in federation.operator.version(number).files})
    digests += [expert.digest for expert in federation.operator.experts()]
    digests += [digest for (digest,) in rows(federation, "SELECT digest FROM contributions")]
    return {
        "number": [*numbers, *parts, *tricks],
        "name": [*files, *digests[:3], "champion", "%2e%2e", f"..%2F1%2F{ROUTER}"],
        "digest": [*digests, "current", "..", f"{digests[0]}%2F.."],
        "id": [workflow.id for workflow in federation.operator.workflows()],
        "domain": [*DOMAINS, "usable"],
    }  # fmt: skip


def rows(federation: Federation, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(federation.server.home / "coordinator.sqlite")) as database:
        return database.execute(query).fetchall()


def paths_of(site: Site) -> Iterator[str]:
    """Every path of the OpenAPI document with GET, with all values of its parameters, and paths that aren't in it."""
    values = values_of(site)
    described = httpx.get(f"{site.federation.server.url}/openapi.json").json()["paths"]
    for path in (path for path, methods in described.items() if "get" in methods):
        names = [piece[1:-1] for piece in path.split("/") if piece.startswith("{")]
        for chosen in product(*(values[name] for name in names)):
            filled = path
            for name, value in zip(names, chosen, strict=True):
                filled = filled.replace(f"{{{name}}}", value)
            yield filled
    for digest in values["digest"]:
        yield from (
            f"/blobs/{digest[:2]}/{digest}",
            f"/v1/blobs/{digest}",
            f"/v1/uploads/{digest}",
            f"/dashboard/static/..%2F..%2F{digest}",
        )


@pytest.mark.parametrize("name", ["ben", "unnamed", "owner of art"])
def test_no_page_of_the_dashboard_gives_bytes_of_a_closed_expert(site: Site, name: str) -> None:
    """All pages that its pages link to; each opens, or says why not."""
    windows, seen, left = site.secrets("law").values(), set[str](), ["/dashboard/versions", "/dashboard/versions/1"]
    left += [f"/dashboard/versions/{site.part('art', 'code')}", "/dashboard/versions/1073741825"]
    with signed_in(site.federation.server, site.tokens[name]) as browser:
        while left:
            path = left.pop()
            seen.add(path)
            answer = browser.get(f"{site.federation.server.url}{path}")
            assert answer.status_code in (200, 303, 403, 404, 405, 422), (path, answer.text)
            assert not any(window in answer.content for window in windows), path
            links = [] if "text/html" not in answer.headers.get("Content-Type", "") else HREF.findall(answer.text)
            left += [link for link in links if link.startswith("/") and link not in seen and link not in left]
    assert {"/dashboard/versions", "/dashboard/versions/1"} <= seen


def test_a_revocation_closes_a_part_to_all_methods_ranges_and_resumed_downloads(site: Site, tmp_path: Path) -> None:
    """The part is closed to other readers before, too."""
    federation = site.federation
    site.add("carl")
    grant(federation, "law", "carl")
    with site.client("carl") as carl:
        version = carl.version(carl.wait(carl.make_part(1)))
        assert version.name == site.part("law", "code")
        [law] = [file for file in version.files if file.name == EXPERT.format(0)]
        place, half = f"/v1/versions/{version.name}/files", tmp_path / f".{law.name}.part"
        carl.download(place, [law], tmp_path / "whole", SILENT, title="law")
        half.write_bytes((tmp_path / "whole" / law.name).read_bytes()[: law.size // 2])
        assert calls(site, "carl", f"{place}/{law.name}") == {"GET", "GET bytes=9-", "GET bytes=0-0", "GET again"}
        assert calls(site, "ben", f"{place}/{law.name}") == set()
        revoke(federation, "law", "carl")
        for which in (version.name, version.name.replace("+", "%2B"), "1", "champion"):
            for what in (f"files/{law.name}", "report", "card", "signed-card", "engines", "provenance"):
                assert calls(site, "carl", f"/v1/versions/{which}/{what}") == set()
        with pytest.raises(CoordinatorError, match="aren't granted to you: law"):
            carl.download(place, [law], tmp_path, SILENT, title="law")
        assert half.stat().st_size == law.size // 2


def calls(site: Site, name: str, path: str) -> set[str]:
    """The calls that give a reader content, or an answer that it has not changed."""
    ways: list[tuple[str, str, dict[str, str]]]
    ways = [(method, "", {}) for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")]
    ways += [("GET", f" {asked}", {"Range": asked}) for asked in ("bytes=9-", "bytes=0-0")]
    digest = site.federation.operator.version(1).files
    ways += [("GET", " again", {"If-None-Match": f'"{file.sha256}"'}) for file in digest if file.name in path]
    token = {"Authorization": f"Bearer {site.tokens[name]}", "X-HTTP-Method-Override": "GET"}
    url = f"{site.federation.server.url}{path}"
    answers = {f"{way}{what}": httpx.request(way, url, headers=token | more) for way, what, more in ways}
    return {what for what, answer in answers.items() if answer.status_code < 400}


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
@pytest.mark.parametrize(
    ("who", "path"),
    [
        ("operator", "law/ben"), ("ben", "law/ben"), ("metrics", "law/ben"), ("law-owner", "law/law-owner"),
        ("law", "law/law"), ("owner of art", "law/ben"), ("owner of law", "nothing/ben"), ("owner of law", "law/Ben"),
        ("owner of law", "law/ALL"), ("owner of law", "law/%20all"), ("owner of law", "law/ben%0A"),
        ("owner of law", "law/ben%00"), ("owner of law", "law/" + "b" * 64), ("owner of law", "law/ben%2Fx"),
        ("owner of law", "LAW/ben"), ("owner of law", "law%2F..%2Fart/ben"),
    ],
)  # fmt: skip
def test_only_its_owner_grants_an_expert_and_only_to_a_name(site: Site, method: str, who: str, path: str) -> None:
    url, count = f"{site.federation.server.url}/v1/grants/{path}", "SELECT count(*) FROM grants"
    before, body = rows(site.federation, count), b"{}" if method == "PUT" else None
    headers = {"Authorization": f"Bearer {site.tokens[who]}", "Content-Type": "application/json"}
    assert httpx.request(method, url, headers=headers, content=body).status_code in (403, 404, 405, 422)
    assert rows(site.federation, count) == before


@pytest.mark.parametrize(
    "until",
    [
        "2020-01-01T00:00:00Z", "2999-01-01T00:00:00", "9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00",
        "2999-01-01T00:00:00+99:00", "never", 1e30, True, -1,
    ],
)  # fmt: skip
def test_a_grant_ends_at_a_later_time_or_never(site: Site, until: object) -> None:
    url, count = f"{site.federation.server.url}/v1/grants/law/eve", "SELECT count(*) FROM grants"
    before, headers = rows(site.federation, count), {"Authorization": f"Bearer {site.tokens['owner of law']}"}
    assert httpx.put(url, headers=headers, json={"until": until}).status_code == 422
    assert rows(site.federation, count) == before


def test_one_moment_in_two_zones_is_one_decision(site: Site) -> None:
    """The log has its digest in UTC."""
    law = site.federation.members["law"].client
    first = law.grant("law", "eve", datetime(2999, 1, 1, 14, tzinfo=timezone(timedelta(hours=14))))
    assert law.grant("law", "eve", datetime(2998, 12, 31, 22, tzinfo=timezone(timedelta(hours=-2)))) == first
    law.revoke_grant("law", "eve")
    assert found(site) == set()


def found(site: Site) -> set[str]:
    """What `coordinator verify` finds altered or missing."""
    settings = read_settings(site.home)
    with closing(open_database(settings.database)) as database:
        findings = verify(settings, database, stores(settings)[0], SILENT)
    return {" ".join((item.file, item.digest, *item.needed_by)) for item in findings if item.damage}


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ("UPDATE grants SET reader = 'ben' WHERE number = 1", "grant 1"),
        ("UPDATE grants SET granted = 0 WHERE number = 1", "grant 1"),
        ("UPDATE grants SET until = '2999-01-01 00:00:00.000000' WHERE number = 1", "grant 1"),
        ("DELETE FROM grants WHERE number = 1", "grant 1"),
        ("INSERT INTO grants SELECT 99, domain, owner, 'ben', 1, NULL, created FROM grants LIMIT 1", "grant 99"),
        ("UPDATE versions SET part = '0123456789abcdef' WHERE number = 1073741825", "version 1+"),
        ("UPDATE versions SET lineage = replace(lineage, '\"law\"', '\"code\"') WHERE number = 1", "version 1"),
        ("UPDATE composed SET header = zeroblob(length(header))", "a file of a part"),
        ("UPDATE composed SET segments = replace(segments, '\"start\": ', '\"start\": 1')", "a file of a part"),
        ("UPDATE composed SET size = size + 1", "a file of a part"),
        ("UPDATE composed SET size = size - 1", "a file of a part"),
        ("UPDATE composed SET sha256 = replace(sha256, 'a', 'b')", "version 1+"),
    ],
)  # fmt: skip
def test_changed_rows_are_found(site: Site, tmp_path: Path, change: str, where: str) -> None:
    """Rows of grants can't be changed with the database's triggers."""
    table = change.split()[2 if change.startswith(("DELETE", "INSERT")) else 1]
    with closing(sqlite3.connect(site.home / "coordinator.sqlite", isolation_level=None)) as database:
        kept = database.execute(f"SELECT * FROM {table}").fetchall()  # noqa: S608  # our own table
        query = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = ?"
        triggers = database.execute(query, (table,)).fetchall()
        if table == "grants" and not change.startswith("INSERT"):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                database.execute(change)
        for name, _ in triggers:
            database.execute(f"DROP TRIGGER {name}")
        try:
            assert database.execute(change).rowcount
            assert any(where in one for one in found(site))
        finally:
            database.execute("BEGIN")
            database.execute(f"DELETE FROM {table}")  # noqa: S608
            database.executemany(f"INSERT INTO {table} VALUES ({','.join('?' * len(kept[0]))})", kept)  # noqa: S608
            database.execute("COMMIT")
            for _, text in triggers:
                database.execute(text)
    assert found(site) == set()


def test_a_part_without_its_version_s_file_is_damage_and_ends_no_download(site: Site, tmp_path: Path) -> None:
    name = site.part("art", "code")
    [part] = [file for file in site.federation.operator.version(name).files if file.name == EXPERT.format(1)]
    [code] = [file for file in site.federation.operator.version(1).files if file.name == EXPERT.format(2)]
    headers = {"Authorization": f"Bearer {site.tokens['ben']}"}
    blob = site.home / "blobs" / code.sha256[:2] / code.sha256
    assert not (blob.parents[1] / part.sha256[:2] / part.sha256).exists()
    shutil.move(blob, tmp_path / "gone")
    try:
        assert any(code.sha256 in one for one in found(site))
        with pytest.raises(httpx.RemoteProtocolError, match="without sending complete message body"):
            httpx.get(f"{site.federation.server.url}/v1/versions/{name}/files/{part.name}", headers=headers)
    finally:
        shutil.move(tmp_path / "gone", blob)
    assert found(site) == set()


def test_a_part_is_made_once_for_its_readers_alone(site: Site) -> None:
    federation = site.federation
    site.add("flood")
    grant(federation, "law", "flood")
    url = f"{federation.server.url}/v1/versions/2/part"

    def asked(name: str) -> httpx.Response:
        return httpx.post(url, headers={"Authorization": f"Bearer {site.tokens[name]}"}, timeout=60)

    with ThreadPoolExecutor(8) as pool:
        answers = [answer.json()["id"] for answer in pool.map(asked, ["flood"] * 24)]
    with site.client("flood") as reader:
        assert reader.wait(reader.make_part(2)) == site.part("law", "code", number=2)
        workflows = [workflow.id for workflow in federation.operator.workflows("version")]
        made = [id_ for id_ in workflows if id_ in answers]
        assert len({id_.rpartition("-")[0] for id_ in made}) == 1
        assert reader.workflow(made[0]).result == site.part("law", "code", number=2)
        [whole] = [item.id for item in federation.operator.workflows("version") if item.result == "1"]
        with pytest.raises(CoordinatorError, match="workflow"):
            reader.workflow(whole)
        with pytest.raises(CoordinatorError, match="needs the role operator"):
            list(reader.workflows())
    with site.client("owner of art") as owner, pytest.raises(CoordinatorError, match="workflow"):
        owner.workflow(made[0])
    assert {asked(name).status_code for name in ("operator", "metrics", "owner of law")} == {403}
    headers = {"Authorization": f"Bearer {site.tokens['flood']}"}
    for number in ("1073741825", "99", "0", "1%2B0123456789abcdef"):
        answer = httpx.post(url.replace("/2/", f"/{number}/"), headers=headers)
        assert answer.status_code in (404, 422), number
    revoke(federation, "law", "flood")


class Between(httpx.HTTPTransport):
    """Somebody between a client and the coordinator: `does` gets each request, and what passes it on."""

    def __init__(self, does: Callable[[httpx.Request, Send], httpx.Response]) -> None:
        super().__init__()
        self._does = does

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return self._does(request, super().handle_request)


@pytest.mark.parametrize(
    ("name", "asked", "sent", "problem"),
    [
        ("anna", "/v1/versions/1", "/v1/versions/{}", "the coordinator sent version 1[+]"),
        ("anna", "/v1/versions/1", "/v1/versions/2", "the coordinator sent version 2"),
        ("anna", "/v1/versions/1/signed-card", "/v1/versions/{}/signed-card", "sent the signature of version 1[+]"),
        ("ben", "/v1/versions/{}/signed-card", "/v1/versions/{two}/signed-card", "sent the signature of version 2[+]"),
        ("ben", "/v1/versions/1/part", "/v1/versions/2/part", "offers 2[+].* as its part"),
        ("operator", "/v1/versions/1/files/.*", "/v1/versions/2/files/", "expected SHA-256"),
    ],
)  # fmt: skip
def test_a_coordinator_that_sends_another_version_is_refused(
    site: Site, tmp_path: Path, name: str, asked: str, sent: str, problem: str
) -> None:
    """Another version, a part of another one, or another one's signature or files."""
    part, two = site.part("art", "code"), site.part("art", "code", number=2)

    def lie(request: httpx.Request, send: Send) -> httpx.Response:
        path = request.url.raw_path.decode()
        if path == asked.format(part) or (asked.endswith(".*") and path.startswith(asked[:-2])):
            file = path.rpartition("/")[2] if asked.endswith(".*") else ""
            request.url = request.url.copy_with(raw_path=(sent.format(part, two=two) + file).encode())
        return send(request)

    with site.client(name, transport=Between(lie)) as client, pytest.raises(MoergeError, match=problem):
        pull(client, client.version(1), tmp_path / "model", SILENT)
    assert not (tmp_path / "model").exists()


def test_a_part_with_more_experts_than_its_name_says_is_refused(site: Site, tmp_path: Path) -> None:
    """By somebody with the version key."""
    name, key, operator = site.part("art", "code"), read_version_key(site.home / KEY_FILE), site.federation.operator
    card = operator.signed_card(1)
    signed = SignedVersion.of(str(card.signature))
    signature = sign_version(key, 1, signed.release, signed.files, signed.provenance, name[2:])

    def lie(request: httpx.Request, send: Send) -> httpx.Response:
        path = request.url.path.replace(name, "1")
        answer = send(httpx.Request("GET", request.url.copy_with(path=path), headers=request.headers))
        if path == "/v1/versions/1":
            return httpx.Response(200, json=json.loads(answer.read()) | {"part": name[2:]})
        if path == "/v1/versions/1/signed-card":
            return httpx.Response(200, json=json.loads(answer.read()) | {"signature": signature})
        return answer

    problem = "has other experts than its name says"
    with site.client("operator", transport=Between(lie)) as client, pytest.raises(MoergeError, match=problem):
        pull(client, client.version(name), tmp_path / "model", SILENT)
    assert not (tmp_path / "model").exists()


class Cut(httpx.SyncByteStream):
    """The first half of an answer."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def __iter__(self) -> Iterator[bytes]:
        yield self._content[: len(self._content) // 2]
        raise httpx.ReadError("cut")


@pytest.mark.parametrize("how", ["revoked", "cut", "ended", "more"])
def test_a_grant_that_changes_during_a_pull_gives_one_version_whole(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Before its second file, or, `cut`, within law's; afterwards no file has law's MLPs, unless it has more."""
    monkeypatch.setattr("moerge.client.downloads._READ_BYTES", 1000)  # so that half of a file is written
    federation, left, reader = site.federation, ["change"], f"racer-{how}"
    site.add(reader)
    end = datetime.now(UTC) + timedelta(seconds=4)
    grant(federation, "law", reader, end if how == "ended" else None)

    def change(request: httpx.Request, send: Send) -> httpx.Response:
        now = request.url.path.endswith(EXPERT.format(0) if how == "cut" else EXPERT.format(1))
        if not now or not left:
            return send(request)
        left.clear()
        assert how == "cut" or site.leaks(tmp_path, "law")
        answer = send(request) if how == "cut" else None
        if how == "ended":
            with site.client(reader) as client:
                eventually(lambda: "law" not in {row.domain for row in client.usable()})
        elif how == "more":
            grant(federation, "art", reader)
        else:
            revoke(federation, "law", reader)
        if answer is None:
            return send(request)
        return httpx.Response(200, headers=answer.headers, stream=Cut(answer.read()))

    with site.client(reader, transport=Between(change)) as client:
        pull(client, client.version(1), tmp_path / "model", SILENT)
    assert not left
    kept = ("law", "code") if how == "more" else ("code",)
    assert verify_folder(tmp_path / "model", None, SILENT).name == site.part(*kept)
    assert bool(site.leaks(tmp_path, "law")) == (how == "more")
    assert not [path for path in tmp_path.iterdir() if path.is_dir() and path.name != "model"]


def test_nothing_can_be_exported_pushed_or_rebuilt_from_a_pulled_part(site: Site, tmp_path: Path) -> None:
    """Exports and uploads read the folder alone; a rebuild needs inputs, which the coordinator's home alone has."""
    with site.client("ben") as reader:
        pull(reader, reader.version(1), tmp_path / "model", SILENT)
    assert site.leaks(tmp_path, "law") == []
    ben = {"MOERGE_COORDINATOR": site.federation.server.url, "MOERGE_TOKEN": site.tokens["ben"]}
    for number in (1, 2):
        done = run_command(
            "version", "rebuild", number, "--from", tmp_path / "model", "--out", tmp_path / "made",
            "--key", site.home / "version-key.pub", **ben,
        )  # fmt: skip
        assert done.returncode == 1, done.stdout
        assert not (tmp_path / "made").exists()
    assert run_command("workflow", "list", **ben).returncode == 1
    assert site.leaks(tmp_path, "law") == []


def test_an_interrupted_pull_s_files_of_a_closed_expert_go_with_the_next_one(site: Site, tmp_path: Path) -> None:
    federation = site.federation
    site.add("stopper")
    grant(federation, "law", "stopper")

    def stop(request: httpx.Request, send: Send) -> httpx.Response:
        if request.url.path.endswith(EXPERT.format(1)):
            raise KeyboardInterrupt
        return send(request)

    with site.client("stopper", transport=Between(stop)) as client, pytest.raises(KeyboardInterrupt):
        pull(client, client.version(1), tmp_path / "model", SILENT)
    assert site.leaks(tmp_path, "law")
    revoke(federation, "law", "stopper")
    with site.client("stopper") as client:
        pull(client, client.version(1), tmp_path / "model", SILENT)
    assert not site.leaks(tmp_path, "law")


def test_grants_that_change_again_and_again_leave_the_folder(site: Site, tmp_path: Path) -> None:
    federation, changes = site.federation, list[str]()
    site.add("turner")
    with site.client("turner") as client:
        pull(client, client.version(1), tmp_path / "model", SILENT)
    before = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    grant(federation, "law", "turner")

    def turn(request: httpx.Request, send: Send) -> httpx.Response:
        if request.url.path.endswith("/signed-card"):
            old, new = ("law", "art") if len(changes) % 2 == 0 else ("art", "law")
            changes.append(old)
            grant(federation, new, "turner")
            revoke(federation, old, "turner")
        return send(request)

    problem = "your grants changed again and again"
    with site.client("turner", transport=Between(turn)) as client, pytest.raises(MoergeError, match=problem):
        pull(client, client.version(1), tmp_path / "model", SILENT)
    assert len(changes) == 5
    assert {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()} == before
    with site.client("turner") as client:
        pull(client, client.version(1), tmp_path / "model", SILENT)
    assert verify_folder(tmp_path / "model", None, SILENT).name == site.part("art", "code")


@pytest.mark.parametrize(
    ("name", "closed"),
    [
        ("anna", ()),
        ("ben", ("law",)),
        ("unnamed", ("law", "art")),
        ("law-owner", ("law", "art")),
        ("metrics", DOMAINS),
        ("owner of art", ("law", "code")),
    ],
)
def test_no_path_gives_bytes_of_a_closed_expert(site: Site, name: str, closed: tuple[str, ...]) -> None:
    """anna, to whom none is closed, gets them by the same calls."""
    secrets, found, answered = site.secrets(*(closed or DOMAINS)), set[str](), 0
    headers = {"Authorization": f"Bearer {site.tokens[name]}"}
    with httpx.Client(base_url=site.federation.server.url, headers=headers, timeout=60) as client:
        for path in paths_of(site):
            answer = client.get(path)
            assert answer.status_code < 500, (path, answer.text)
            answered += answer.status_code == 200
            found |= {what for what, window in secrets.items() if window in answer.content}
    if closed:
        assert not found
    else:
        assert found == set(secrets)
    assert answered > (2 if name == "metrics" else 20)


def test_a_withdrawn_expert_is_in_no_new_part_and_asking_starts_nothing(site: Site) -> None:
    """A part that has not been made is refused, one that is withheld too; those without the expert stay.

    The last test: it changes the versions.
    """
    federation = site.federation
    site.add("late")
    for domain in ("law", "art"):
        grant(federation, domain, "late")
    revoke(federation, "code", "all")
    federation.members["law"].client.withdraw_expert(federation.expert("law").digest, serve=False)
    before = len([*federation.operator.workflows()])
    with site.client("late") as late:
        for _ in range(3):
            with pytest.raises(CoordinatorError, match="was withdrawn meanwhile"):
                late.make_part(1)
        grant(federation, "code", "all")
        revoke(federation, "art", "late")
        assert late.version(site.part("law", "code")).withheld
        with pytest.raises(CoordinatorError, match="is withheld"):
            late.make_part(1)
    assert len([*federation.operator.workflows()]) == before
    with site.client("anna") as anna, pytest.raises(CoordinatorError, match="is withheld"):
        anna.make_part(1)
    with site.client("ben") as ben:
        assert ben.signed_card(ben.wait(ben.make_part(1))).signature
