"""Experts that the coordinator fetches from allowed sources."""

import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from moerge.client.client import Client
from moerge.files import file_sha256
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import expert_files, file_digests
from moerge_coordinator.domain.sources import fetch
from moerge_proto.experts import Expert, ExpertState, NewExpert
from support.federation import Federation, Member, eventually, federation_of, files_below
from support.models import expert
from support.processes import Coordinator, moerge, run_command


class Source(ThreadingHTTPServer):
    """Serves a folder below /models/, and keeps the requests. `behaves`: path -> a fault or a redirect."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.behaves: dict[str, str] = {}
        self.requests: list[tuple[str, str | None]] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Source

    def do_GET(self) -> None:  # http.server's own name
        self.server.requests.append((self.path, self.headers.get("Range")))
        how = self.server.behaves.get(self.path, "")
        if how.startswith(("http", "file", "/", "ftp", "//")):
            self.send_response(302)
            self.send_header("Location", how)
            self.end_headers()
            return
        path = self.server.folder / self.path.partition("?")[0].rpartition("/")[2]
        if how == "status 500" or not path.is_file():
            self.send_error(500 if how else 404)
            return
        data = path.read_bytes()
        start = int((self.headers.get("Range") or "bytes=0-")[6:-1])
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        if how == "breaks off":
            del self.server.behaves[self.path]
            data = data[: start + (len(data) - start) // 2]
        self.wfile.write(data[start:])

    def log_message(self, format: str, *args: object) -> None:  # http.server's own name
        pass


@contextmanager
def serving(folder: Path) -> Iterator[Source]:
    with Source(folder) as source:
        thread = threading.Thread(target=source.serve_forever)
        thread.start()
        try:
            yield source
        finally:
            source.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Source]:
    with serving(tmp_path_factory.mktemp("source")) as source:
        yield source


@pytest.fixture(scope="module")
def federation(site: Source, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A coordinator that allows the source below /models only; each owner may hold 2 MB."""
    settings = f'sources = ["{site.url}/models"]\nowner_bytes = 2000000\n'
    with federation_of(tmp_path_factory.mktemp("fetching"), settings=settings) as federation:
        yield federation


@pytest.fixture
def member(federation: Federation) -> Member:
    """An owner whose expert is not registered yet."""
    domain = f"law-{len(federation.members)}"
    return federation.join(domain, expert(federation.folder / domain, seed=len(federation.members)))


@pytest.fixture
def source(site: Source, member: Member) -> Source:
    """It serves the member's expert."""
    site.folder = member.folder
    site.behaves.clear()
    site.requests.clear()
    return site


@pytest.fixture
def server(federation: Federation) -> Coordinator:
    return federation.server


def wanted(member: Member, source: str | None, files: dict[str, str] | None = None) -> NewExpert:
    return NewExpert(domain=member.domain, files=files or file_digests(DenseFiles(member.folder)), source=source)


def registered(client: Client, new: NewExpert) -> Expert:
    digest = client.register_expert(new).digest
    eventually(lambda: client.expert(digest).state is not ExpertState.RECEIVED)
    return client.expert(digest)


def refused(server: Coordinator, member: Member, url: str, files: dict[str, str] | None = None) -> str:
    """The reason; nothing of the expert is kept."""
    before = files_below(server)
    result = registered(member.client, wanted(member, url, files))
    assert result.state is ExpertState.REFUSED
    assert result.problem is not None
    eventually(lambda: files_below(server) == before)
    eventually(lambda: not list((server.home / "fetching").glob("*")))
    return f"{result.problem.field}: {result.problem.detail}"


def test_a_fetched_expert_is_kept_like_an_uploaded_one(server: Coordinator, member: Member, source: Source) -> None:
    row = registered(member.client, wanted(member, f"{source.url}/models/law"))
    assert (row.state, row.family, row.problem) == (ExpertState.READY, "llama", None)
    assert row == member.client.register_expert(wanted(member, None))
    stored = {path.read_bytes() for path in (server.home / "experts" / row.digest).iterdir()}
    assert stored == {path.read_bytes() for path in expert_files(DenseFiles(member.folder)).values()}


def test_an_operator_lets_the_coordinator_fetch(federation: Federation, member: Member, source: Source) -> None:
    row = registered(federation.operator, wanted(member, f"{source.url}/models/law"))
    assert (row.state, row.owner) == (ExpertState.READY, member.name)


def test_a_command_fetches_again_after_a_refusal(server: Coordinator, member: Member, source: Source) -> None:
    command = ["expert", "add", str(member.folder), "--domain", member.domain, "--source", f"{source.url}/models/law"]
    environment = server.environment(member.token)
    source.behaves["/models/law/config.json"] = "/elsewhere"
    done = run_command(*command, **environment)
    assert (done.returncode, "it redirects to" in done.stderr) == (1, True)
    del source.behaves["/models/law/config.json"]
    digest = moerge(*command, **environment)
    assert member.client.expert(digest).state is ExpertState.READY


def test_a_broken_fetch_continues_where_it_was(member: Member, source: Source) -> None:
    path = "/models/law/model.safetensors"
    source.behaves[path] = "breaks off"
    assert registered(member.client, wanted(member, f"{source.url}/models/law")).state is ExpertState.READY
    first, second = [start for at, start in source.requests if at == path]
    assert first is None
    half = (member.folder / "model.safetensors").stat().st_size // 2
    assert second == f"bytes={half}-"


def test_a_fetch_continues_after_a_killed_coordinator(server: Coordinator, member: Member, source: Source) -> None:
    path = "/models/law/tokenizer.json"
    source.behaves[path] = "status 500"
    digest = member.client.register_expert(wanted(member, f"{source.url}/models/law")).digest
    eventually(lambda: any(at == path for at, _ in source.requests))
    server.kill()
    del source.behaves[path]
    server.start()
    eventually(lambda: member.client.expert(digest).state is ExpertState.READY)


def test_redirects_are_followed_to_allowed_sources_only(server: Coordinator, member: Member, source: Source) -> None:
    path, host = "/models/law/config.json", source.url
    elsewhere = ["/private/config.json", "http://127.0.0.1:1/models/config.json", "file:///etc/passwd", "ftp://x/y",
                 "//127.0.0.1/models/x", f"{host}/models/../private", f"{host}/models/%2e%2e/private",
                 f"http://user@{host[7:]}/models/x", path]  # fmt: skip
    for target in elsewhere:
        source.behaves[path] = target
        source.requests.clear()
        reason = refused(server, member, f"{host}/models/law")
        assert f"source: {host}{path} can't be fetched" in reason
        assert ("more than 5 redirects" if target == path else "it redirects to") in reason
        assert {at for at, _ in source.requests} == {path}
        assert len(source.requests) == (6 if target == path else 1)
    source.behaves[path] = f"{host}/models/cache/config.json?signature=a%2Fb"
    assert registered(member.client, wanted(member, f"{host}/models/law")).state is ExpertState.READY


def test_unfit_files_are_refused_by_reason(server: Coordinator, member: Member, source: Source, tmp_path: Path) -> None:
    url, files = f"{source.url}/models/law", file_digests(DenseFiles(member.folder))
    assert "status 404" in refused(server, member, url, {**files, "vocab.json": "0" * 64})
    assert "has the SHA-256" in refused(server, member, url, {**files, "config.json": "0" * 64})
    source.folder = shutil.copytree(member.folder, tmp_path / "changed")
    config = source.folder / "config.json"
    config.write_bytes(b"x" * 3_000_000)
    assert "exceeds the owner's remaining 2000000 bytes" in refused(server, member, url)
    config.write_text(json.dumps({"model_type": "gpt_neox"}))
    assert "config.json" in refused(server, member, url, {**files, "config.json": file_sha256(config)})
    source.folder = member.folder
    assert registered(member.client, wanted(member, url)).state is ExpertState.READY


def test_proxies_of_the_environment_are_not_used(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{source.url}/models/config.json")
    fetch(f"{source.url}/models/config.json", tmp_path / "part", 10**6, [f"{source.url}/models"], lambda n: None)
    assert (tmp_path / "part").read_bytes() == (source.folder / "config.json").read_bytes()
