"""Uploads: what is damaged is refused and not kept, what came is not asked for again, and never across owners."""

import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import zstandard
from contract.conftest import House
from support.contributions import Party, bearer, database_rows, kept, problem_of

from moerge.client import content_digest
from moerge.progress import LogProgress
from moerge_proto.digests import sha256_hex
from moerge_proto.problems import ProblemType
from moerge_proto.uploads import CHUNK_BYTES

Made = Callable[..., Party]


def _request(chunks: list[bytes], plain: bytes, **changes: object) -> dict[str, object]:
    sent = [{"sha256": sha256_hex(chunk), "size": len(chunk)} for chunk in chunks]
    return {"sha256": sha256_hex(plain), "size": len(plain), "chunks": sent, **changes}


def _open(party: Party, request: dict[str, object]) -> tuple[int, list[str]]:
    answer = party.post("/v1/uploads", request)
    assert answer.status_code == 201, answer.text
    return answer.json()["id"], answer.json()["missing"]


def _put(party: Party, upload: int, sha256: str, body: bytes, digest: str | None = None) -> httpx.Response:
    headers = bearer(party.token) | {"Content-Digest": digest or content_digest(sha256)}
    return httpx.put(f"{party.url}/v1/uploads/{upload}/chunks/{sha256}", content=body, headers=headers)


def _sent(party: Party, chunks: list[bytes], plain: bytes, **changes: object) -> int:
    """An upload whose chunks have all come."""
    upload, _ = _open(party, _request(chunks, plain, **changes))
    for chunk in chunks:
        assert _put(party, upload, sha256_hex(chunk), chunk).status_code == 204
    return upload


def _uploads(home: Path) -> set[object]:
    rows = database_rows(home, ["uploads"])["uploads"]
    return {*rows, *(path for path in (home / "uploads").rglob("*") if path.is_file())}


DAMAGE: dict[str, tuple[Callable[[bytes], bytes], ProblemType]] = {
    "cut": (lambda chunk: chunk[:-1], ProblemType.TRUNCATED),
    "empty": (lambda chunk: b"", ProblemType.TRUNCATED),
    "too long": (lambda chunk: chunk + b"!", ProblemType.INVALID_REQUEST),
    "one bit": (lambda chunk: chunk[:-1] + bytes([chunk[-1] ^ 1]), ProblemType.WRONG_DIGEST),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_chunk_is_refused_not_kept_and_can_be_sent_again(house: House, newcomer: Made, damage: str) -> None:
    change, kind = DAMAGE[damage]
    party, chunk = newcomer(), secrets.token_bytes(1000)
    request = _request([chunk], chunk)
    upload, missing = _open(party, request)
    before = _uploads(house.home)
    problem_of(_put(party, upload, missing[0], change(chunk)), kind, missing[0])
    assert _uploads(house.home) == before
    assert _open(party, request) == (upload, missing)
    assert _put(party, upload, missing[0], chunk).status_code == 204
    assert party.post(f"/v1/uploads/{upload}/commit", {}).json() == {"sha256": sha256_hex(chunk), "size": 1000}


def test_a_chunk_whose_content_digest_header_differs_is_refused(house: House, newcomer: Made) -> None:
    party, chunk = newcomer(), secrets.token_bytes(10)
    upload, missing = _open(party, _request([chunk], chunk))
    answer = _put(party, upload, missing[0], chunk, content_digest("0" * 64))
    problem_of(answer, ProblemType.WRONG_DIGEST, "Content-Digest")
    assert not (house.home / "uploads" / str(upload)).exists()


def test_a_chunk_that_the_manifest_does_not_name_is_refused(house: House, newcomer: Made) -> None:
    party, chunk = newcomer(), secrets.token_bytes(10)
    upload, _ = _open(party, _request([chunk], chunk))
    problem_of(_put(party, upload, "4" * 64, chunk), ProblemType.NOT_FOUND)
    assert not (house.home / "uploads" / str(upload)).exists()


def test_a_commit_before_every_chunk_has_come_names_one_that_is_missing(newcomer: Made) -> None:
    party, chunks = newcomer(), [secrets.token_bytes(10), secrets.token_bytes(10)]
    upload, _ = _open(party, _request(chunks, b"".join(chunks)))
    _put(party, upload, sha256_hex(chunks[0]), chunks[0])
    problem_of(party.post(f"/v1/uploads/{upload}/commit", {}), ProblemType.NOT_READY, sha256_hex(chunks[1]))


def _zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


WHOLES: dict[str, tuple[list[bytes], bytes, dict[str, object]]] = {
    "wrong digest": ([b"some bytes"], b"others", {"size": 10}),
    "fewer bytes than announced": ([b"some bytes"], b"some bytes", {"size": 11}),
    "more bytes than announced": ([b"some bytes"], b"some bytes", {"size": 9}),
    "zstd bomb": ([_zstd(bytes(64 * 2**20))], bytes(1000), {"encoding": "zstd"}),
    "no zstd frame": ([b"some bytes"], b"some bytes", {"encoding": "zstd"}),
    "zstd frame cut": ([_zstd(b"some bytes")[:-3]], b"some bytes", {"encoding": "zstd"}),
}


@pytest.mark.parametrize("case", WHOLES)
def test_a_whole_that_is_not_what_it_is_named_is_refused_and_forgotten(
    house: House, newcomer: Made, case: str
) -> None:
    chunks, plain, changes = WHOLES[case]
    party = newcomer()
    before, open_before = kept(house.home), _uploads(house.home)
    upload = _sent(party, chunks, plain, **changes)
    problem_of(party.post(f"/v1/uploads/{upload}/commit", {}), ProblemType.WRONG_DIGEST)
    assert kept(house.home) == before
    assert _uploads(house.home) == open_before
    right = secrets.token_bytes(10)
    assert party.post(f"/v1/uploads/{_sent(party, [right], right)}/commit", {}).status_code == 200


def test_an_interrupted_upload_goes_on_with_the_chunks_that_did_not_come(newcomer: Made) -> None:
    party, chunks = newcomer(), [secrets.token_bytes(10) for _ in range(3)]
    request = _request(chunks, b"".join(chunks))
    upload, missing = _open(party, request)
    assert missing == [sha256_hex(chunk) for chunk in chunks]
    _put(party, upload, missing[1], chunks[1])
    assert _open(party, request) == (upload, [missing[0], missing[2]])


def test_a_committed_upload_sent_again_asks_for_nothing_and_answers_the_same(
    house: House, newcomer: Made, tmp_path: Path
) -> None:
    party, path = newcomer(), tmp_path / "file"
    path.write_bytes(secrets.token_bytes(CHUNK_BYTES + 10))
    first = party.client.upload(path, LogProgress(), title="first")
    before = kept(house.home)
    assert party.client.upload(path, LogProgress(), title="second") == first
    with path.open("rb") as file:
        chunks = [file.read(CHUNK_BYTES), file.read()]
    upload, missing = _open(party, _request(chunks, b"".join(chunks), encoding="identity"))
    assert missing == []
    assert party.post(f"/v1/uploads/{upload}/commit", {}).json() == first.model_dump()
    assert kept(house.home) == before


def test_equal_chunks_are_asked_for_once(newcomer: Made) -> None:
    party, chunk = newcomer(), secrets.token_bytes(10)
    upload, missing = _open(party, _request([chunk, chunk], chunk + chunk))
    assert missing == [sha256_hex(chunk)]
    _put(party, upload, missing[0], chunk)
    assert party.post(f"/v1/uploads/{upload}/commit", {}).json()["size"] == 20


def test_what_one_owner_sent_tells_another_nothing(newcomer: Made) -> None:
    first, other, chunk = newcomer(), newcomer(), secrets.token_bytes(10)
    request = _request([chunk], chunk)
    upload = _sent(first, [chunk], chunk)
    unfinished = _open(other, request)
    assert unfinished[1] == [sha256_hex(chunk)]
    assert first.post(f"/v1/uploads/{upload}/commit", {}).status_code == 200
    assert _open(other, request) == unfinished
    for path in (f"/v1/uploads/{upload}/commit", f"/v1/uploads/{2**40}/commit"):
        problem_of(other.post(path, {}), ProblemType.NOT_FOUND)
    problem_of(_put(other, upload, sha256_hex(chunk), chunk), ProblemType.NOT_FOUND)
    assert _put(other, unfinished[0], sha256_hex(chunk), chunk).status_code == 204
    assert other.post(f"/v1/uploads/{unfinished[0]}/commit", {}).status_code == 200


def test_a_commit_sent_several_times_at_once_answers_the_same_each_time(house: House, newcomer: Made) -> None:
    party, chunks = newcomer(), [secrets.token_bytes(2**20) for _ in range(16)]
    upload = _sent(party, chunks, b"".join(chunks))
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: party.post(f"/v1/uploads/{upload}/commit", {}), range(8)))
    assert [answer.status_code for answer in answers] == [200] * 8, [answer.text for answer in answers]
    assert len({answer.text for answer in answers}) == 1
    assert not (house.home / "uploads" / str(upload)).exists()
    assert not list((house.home / "blobs" / "incoming").iterdir())


BAD_REQUESTS: dict[str, tuple[dict[str, object], str]] = {
    "no chunks": ({"chunks": []}, "chunks"),
    "digest in capitals": ({"sha256": "A" * 64}, "sha256"),
    "digest as a path": ({"sha256": "../" * 21 + "x"}, "sha256"),
    "size of zero": ({"size": 0}, "size"),
    "size beyond JSON": ({"size": 2**60}, "size"),
    "huge chunk": ({"chunks": [{"sha256": "0" * 64, "size": 2**40}]}, "chunks.0.size"),
    "unknown encoding": ({"encoding": "gzip"}, "encoding"),
    "unknown key": ({"owner": "me"}, "owner"),
}


@pytest.mark.parametrize("case", BAD_REQUESTS)
def test_an_upload_announced_wrongly_is_refused_by_field(newcomer: Made, case: str) -> None:
    changes, field = BAD_REQUESTS[case]
    answer = newcomer().post("/v1/uploads", _request([b"x"], b"x") | changes)
    problem_of(answer, ProblemType.INVALID_REQUEST, field)


def test_uploaded_blobs_are_read_only_and_named_by_their_content(house: House, newcomer: Made) -> None:
    party, chunks = newcomer(), [secrets.token_bytes(10), secrets.token_bytes(5)]
    plain = b"".join(chunks)
    upload = _sent(party, [_zstd(chunk) for chunk in chunks], plain, encoding="zstd")
    assert party.post(f"/v1/uploads/{upload}/commit", {}).status_code == 200
    digest = sha256_hex(plain)
    blob = house.home / "blobs" / digest[:2] / digest
    assert blob.read_bytes() == plain
    assert blob.stat().st_mode & 0o777 == 0o444
