"""Hostile files, bodies and names: refused by field, with no files kept and little memory."""

import http.client
import json
import shutil
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest
import zstandard

from moerge.errors import CoordinatorError
from moerge_proto.bodies import Body
from moerge_proto.digests import sha256_hex
from moerge_proto.experts import ExpertState
from moerge_proto.uploads import Chunk, NewUpload
from support.federation import SILENT, Federation, Member, federation_of, files_below, honest, parted, send
from support.models import expert
from support.processes import Coordinator, peak_bytes
from support.statistics import written
from support.uploads import RawClient

MEBIBYTE = 2**20
HEX = "0" * 64


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with federation_of(tmp_path_factory.mktemp("hostile"), "first") as federation:
        yield federation


@pytest.fixture(scope="module")
def server(federation: Federation) -> Coordinator:
    return federation.server


@pytest.fixture(scope="module")
def web(server: Coordinator) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def first(federation: Federation) -> Member:
    return federation.members["first"]


@pytest.fixture(scope="module")
def body(federation: Federation) -> Body:
    return federation.body()


@pytest.fixture(scope="module")
def owner(federation: Federation) -> Member:
    return federation.join("hostile", federation.folder)


@pytest.fixture(scope="module")
def like(federation: Federation, owner: Member, body: Body) -> Member:
    """The owner with the parts of an expert like the first one's."""
    whole = replace(owner, folder=expert(federation.folder / "like", seed=2))
    return parted(federation.server, whole, body, fitted=False)


@pytest.fixture
def member(like: Member, tmp_path: Path) -> Member:
    """The owner without a registered expert, and a copy of its parts."""
    return replace(like, at=shutil.copytree(like.place, tmp_path / "expert"))


def uploaded(member: Member) -> dict[str, str]:
    """Uploads all files without reading the config, which could end this process."""
    return {path.name: member.client.upload(path, SILENT, title="").sha256 for path in member.place.iterdir()}


def refusal(kind: str, call: Callable[[], object]) -> str:
    """The field of a refused call's short problem."""
    with pytest.raises(CoordinatorError) as caught:
        call()
    problem = caught.value.problem()
    assert (problem.status, problem.type) == (422, f"urn:moerge:problem:{kind}")
    assert len(problem.model_dump_json()) < 10_000
    return problem.field


@contextmanager
def harmless(server: Coordinator) -> Iterator[None]:
    """The coordinator keeps the same files, and its memory grows by less than 100 MiB."""
    files, memory = files_below(server), peak_bytes(server, anew=True)
    yield
    assert files_below(server) == files
    assert peak_bytes(server) - memory < 100 * MEBIBYTE


def refused(server: Coordinator, member: Member) -> str:
    """The field of a refused expert; nothing of it is kept, and memory grows by less than 200 MiB."""
    before, new = files_below(server), member.new(uploaded(member))
    memory = peak_bytes(server, anew=True)
    field = refusal("incompatible-expert", lambda: member.client.register_expert(new))
    assert files_below(server) == before
    assert list(member.client.experts()) == []
    assert peak_bytes(server) - memory < 200 * MEBIBYTE
    return field


def change(path: Path, **fields: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.mark.parametrize(
    ("field", "value"),
    [("num_hidden_layers", 10**9), ("vocab_size", 10**12), ("hidden_size", 2**62), ("model_type", "../../etc")],
)
def test_nothing_is_allocated_for_an_absurd_config(
    server: Coordinator, member: Member, field: str, value: object
) -> None:
    change(member.place / "config.json", **{field: value})
    assert "config.json" in refused(server, member)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "generation_config.json"])
@pytest.mark.parametrize("content", ["[" * 200_000, '{"a":' * 200_000, "", "\0" * 1000, "\ud800"])
def test_small_files_that_are_no_json_are_refused_by_name(
    server: Coordinator, member: Member, name: str, content: str
) -> None:
    (member.place / name).write_bytes(content.encode(errors="surrogatepass") or b" ")
    assert name in refused(server, member)


@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.json", "generation_config.json"])
def test_a_bomb_among_the_small_files_is_refused_by_size(server: Coordinator, member: Member, name: str) -> None:
    with (member.place / name).open("wb") as file:
        file.write(b'{"model": {"vocab": ["')
        file.truncate(65 * MEBIBYTE)
    assert name in refused(server, member)


def test_a_config_that_needs_its_own_code_is_refused(server: Coordinator, member: Member) -> None:
    change(member.place / "config.json", auto_map={"AutoConfig": "evil--evil.Config"}, model_type="evil")
    assert refused(server, member) == "config.json: model_type"


def header(tensors: object, body: bytes = b"0" * 8, length: int | None = None) -> bytes:
    text = tensors if isinstance(tensors, bytes) else json.dumps(tensors).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(header(b"{}", length=2**63), id="header of 8 EiB"),
        pytest.param(header(b"{}", length=90_000_000), id="header of 90 MB"),
        pytest.param(header(b"{}" + b" " * 2**24), id="header of 16 MiB"),
        pytest.param(header(b"[" * 100_000), id="deep lists"),
        pytest.param(header(b'{"a":' * 100_000), id="deep objects"),
        pytest.param(header({"a": {"dtype": "F32", "shape": [2**40] * 2, "data_offsets": [0, 8]}}), id="huge shape"),
        pytest.param(header({"x" * 10**6: {}}), id="long name"),
    ],
)
def test_a_false_safetensors_header_takes_no_memory(server: Coordinator, member: Member, content: bytes) -> None:
    (member.place / "model.safetensors").write_bytes(content)
    refused(server, member)


# --- uploads


def window_bomb() -> bytes:
    """A frame that asks for a window of 2 GiB, for one byte."""
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=31)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return compressor.compress(b"x") + compressor.flush()


def gigabytes() -> bytes:
    """1 GiB of zeros in some 33 KB."""
    compressor = zstandard.ZstdCompressor(level=1).compressobj()
    zeros = bytes(2**24)
    return b"".join([*(compressor.compress(zeros) for _ in range(64)), compressor.flush()])


@pytest.mark.parametrize("bomb", [window_bomb, gigabytes])
def test_a_bomb_is_stopped_at_the_announced_size(
    server: Coordinator, member: Member, bomb: Callable[[], bytes]
) -> None:
    body = bomb()
    new = NewUpload(
        sha256=HEX, size=3 * MEBIBYTE, encoding="zstd", chunks=[Chunk(sha256=sha256_hex(body), size=len(body))]
    )
    owner = RawClient(server.url, member.token)
    with harmless(server):
        upload = owner.open(new)
        owner.put(upload, body).raise_for_status()
        response = owner.commit(upload)
        assert (response.status_code, response.json()["type"]) == (422, "urn:moerge:problem:wrong-digest")


# --- statistics


@pytest.fixture(scope="module")
def good(federation: Federation, first: Member, body: Body) -> bytes:
    """An honest statistics file."""
    return written(federation.folder / "good", *honest(federation.server, first, body)).read_bytes()


def with_manifest(data: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    end = 8 + int.from_bytes(data[:8], "little")
    content = json.loads(data[8:end])
    content["__metadata__"]["manifest"] = json.dumps(change(json.loads(content["__metadata__"]["manifest"])))
    return header(content, data[end:])


@pytest.mark.parametrize(
    ("field", "value"), [("tokens", 10**400), ("layers", 10**9), ("domain", "../law"), ("owner", "x" * 10**6)]
)
def test_an_impossible_manifest_is_refused_by_its_field(
    server: Coordinator, first: Member, good: bytes, tmp_path: Path, field: str, value: object
) -> None:
    (tmp_path / "bad").write_bytes(with_manifest(good, lambda manifest: {**manifest, field: value}))
    with harmless(server):
        assert refusal("invalid-contribution", lambda: send(first, tmp_path / "bad")).startswith("manifest")


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(header(b"{}", length=2**63), id="header of 8 EiB"),
        pytest.param(header(b"{}", length=60_000_000), id="header longer than the file"),
        pytest.param(header(b"[" * 100_000), id="deep lists"),
        pytest.param(header({"__metadata__": {"manifest": "[" * 100_000}}), id="deep manifest"),
        pytest.param(header(b'{"__metadata__":{"manifest":NaN}}'), id="NaN"),
        pytest.param(header({"__metadata__": {}, "layers.0.gram": {}}), id="no manifest"),
    ],
)
def test_a_false_statistics_header_is_refused(
    server: Coordinator, first: Member, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "bad").write_bytes(content)
    with harmless(server):
        field = refusal("invalid-contribution", lambda: send(first, tmp_path / "bad"))
        assert field.startswith(("header", "manifest"))


# --- names, ids and bodies

TRAVERSALS = [
    "..%2f..%2f..%2fetc%2fpasswd", "%2e%2e%2f%2e%2e%2fetc%2fpasswd", "..%5c..%5cetc%5cpasswd", "%2fetc%2fpasswd", "..",
    "%00", "x%00.safetensors", "%ff%fe", "coordinator.sqlite", "..%252f..%252fetc%252fpasswd", "x" * 5000, "-1",
    "99999999999999999999", "1e3", "%F0%9F%92%A5", "'%20OR%201=1--",
]  # fmt: skip
PLACES = [
    ("GET", "/experts/{}"), ("GET", "/bodies/{}"), ("GET", "/versions/{}"),
    ("GET", "/versions/{}/files/config.json"), ("GET", "/versions/1/files/{}"), ("GET", "/workflows/{}"),
    ("PUT", f"/uploads/{{}}/chunks/{HEX}"), ("PUT", "/uploads/1/chunks/{}"), ("POST", "/uploads/{}/commit"),
    ("GET", "/experts?after={}"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "place"), PLACES)
def test_no_name_or_id_in_a_path_leads_elsewhere(
    server: Coordinator, first: Member, body: Body, method: str, place: str
) -> None:
    files = files_below(server)
    host = server.url.removeprefix("http://")
    for token in (server.operator_token, first.token):
        for name in TRAVERSALS:
            connection = http.client.HTTPConnection(host)  # which changes no path
            path = "/v1" + place.replace("CURRENT", body.digest).format(name)
            connection.request(method, path, headers={"Authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            content = answer.read()
            connection.close()
            assert 400 <= answer.status < 500, path
            assert answer.headers["Content-Type"] == "application/problem+json", path
            assert b"root:" not in content
            assert len(content) < 20_000
    assert files_below(server) == files


BODIES: list[bytes] = [
    b"[" * 100_000, b'{"a":' * 100_000, b"NaN", b"null", b"3", b'"x"', b"", b"{", b"\xff\xfe",
    b'{"\\ud800": "\\udfff"}',
    b'{"sha256": 1e999}', b'{"sha256": "' + b"0" * 10**6 + b'"}', b'{"domain": "../x", "files": {"../x": "../y"}}',
    b'{"name": "../../x", "domains": ["../y"]}', b'{"role": "operator", "owner": "\\u0000"}',
    b'{"experts": ["../../x"]}', b'{"options": {"top_k": -1}}', b'{"body": "../../x"}',
    b'{"sha256": "0", "size": -1, "chunks": []}', b'{"size": 1' + b"0" * 400 + b"}",
    b'{"options": {"ridge_lambda": NaN}}', b'{"options": {"ridge_lambda": -Infinity}}',
    b'{"options": {"domain_weights": {"../x": 1e308}}}', b'{"options": {"temperature": 0}}',
]  # fmt: skip


@pytest.mark.parametrize(
    ("method", "place"),
    [
        *(("POST", f"/{noun}") for noun in ("owners", "tokens", "uploads", "experts", "versions")),
        ("PUT", f"/contributions/{HEX}"),
    ],
)
def test_no_body_is_more_than_refused(
    server: Coordinator, web: httpx.Client, first: Member, method: str, place: str
) -> None:
    with harmless(server):
        for token, body in product((server.operator_token, first.token), BODIES):
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            response = web.request(method, f"/v1{place}", content=body, headers=headers)
            assert 400 <= response.status_code < 500, body[:80]
            assert response.headers["Content-Type"] == "application/problem+json"
            assert len(response.content) < 10_000


def test_a_link_in_the_home_leads_no_reader_elsewhere(federation: Federation, server: Coordinator, body: Body) -> None:
    """File names are looked up in rows, never on the disk."""
    link = server.home / "versions" / "passwd"
    link.parent.mkdir(exist_ok=True)
    link.symlink_to("/etc/passwd")
    try:
        for path in ("/versions/passwd", "/versions/1/files/passwd"):
            response = federation.get(path)
            assert 400 <= response.status_code < 500
    finally:
        link.unlink()


def test_the_hostile_have_not_harmed_the_honest(server: Coordinator, first: Member, member: Member) -> None:
    assert member.register().state is ExpertState.READY
    assert [item.state for item in first.client.experts()] == [ExpertState.READY]
