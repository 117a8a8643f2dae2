"""Contributions over HTTP: what can't be honest is refused and not kept; what is sent twice counts once."""

import base64
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import zstandard

from moerge.errors import CoordinatorError
from moerge.statistics.accumulate import ShardSums
from moerge_proto.contributions import NewContribution
from moerge_proto.digests import content_digest, sha256_hex
from moerge_proto.statistics_file import RouterManifest, gram_length
from moerge_proto.uploads import Chunk, NewUpload, Upload
from support.federation import Member, Owners, files_below, honest, owners_in, send
from support.statistics import written

Changed = tuple[dict[str, Any], ShardSums]


@pytest.fixture(scope="module")
def owners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Owners]:
    with owners_in(tmp_path_factory.mktemp("contributions")) as made:
        yield made


@pytest.fixture(scope="module")
def law_s(owners: Owners) -> tuple[RouterManifest, ShardSums]:
    """A contribution as law's worker would send it."""
    return honest(owners.server, owners.law, owners.trunk, first=1000)


def another_hidden_size(manifest: dict[str, Any], sums: ShardSums) -> Changed:
    lengths = {"gram": gram_length(16), "cross": 16}
    cut = {name: array[: lengths[name.rpartition(".")[2]]] for name, array in sums.arrays.items()}
    narrow = ShardSums(cut, sums.tokens, sums.documents)
    return manifest | {"hidden_size": 16}, narrow


def fewer_layers(manifest: dict[str, Any], sums: ShardSums) -> Changed:
    cut = {name: array for name, array in sums.arrays.items() if not name.startswith("layers.2")}
    fewer = ShardSums(cut, sums.tokens, sums.documents)
    return manifest | {"layers": 2, "exponents": [16, 16]}, fewer


def other_exponents(manifest: dict[str, Any], sums: ShardSums) -> Changed:
    return manifest | {"exponents": [16, 16, 15]}, sums


def not_semidefinite(manifest: dict[str, Any], sums: ShardSums) -> Changed:
    sums.arrays["layers.1.gram"][1] = 3 * abs(sums.arrays["layers.1.gram"]).max()
    return manifest, sums


def overflow(manifest: dict[str, Any], sums: ShardSums) -> Changed:
    sums.arrays["layers.2.gram"][0] = 2**62
    return manifest, sums


def too_few_tokens(manifest: dict[str, Any], sums: ShardSums) -> Changed:
    return manifest | {"tokens": manifest["tokens"] // 2}, sums


def foreign_cross(manifest: dict[str, Any], sums: ShardSums) -> Changed:
    sums.arrays["layers.0.cross"] += np.int64(1) << 24
    return manifest, sums


def another_owner_s_domain(manifest: dict[str, Any], sums: ShardSums) -> Changed:
    return manifest | {"domain": "art"}, sums


def another_owner(manifest: dict[str, Any], sums: ShardSums) -> Changed:
    return manifest | {"owner": "art-owner"}, sums


def another_expert(manifest: dict[str, Any], sums: ShardSums) -> Changed:
    return manifest | {"expert": "0" * 64}, sums


@pytest.mark.parametrize(
    ("change", "kind", "field"),
    [
        (another_hidden_size, "invalid-contribution", "manifest.hidden_size"),
        (fewer_layers, "invalid-contribution", "manifest.layers"),
        (other_exponents, "invalid-contribution", "manifest.exponents"),
        (not_semidefinite, "invalid-contribution", "layers.1.gram"),
        (overflow, "invalid-contribution", "layers.2.gram"),
        (too_few_tokens, "invalid-contribution", "layers.0.gram"),
        (foreign_cross, "invalid-contribution", "layers.0.cross"),
        (another_owner_s_domain, "forbidden", "domain"),
        (another_owner, "forbidden", "manifest.owner"),
        (another_expert, "invalid-contribution", "manifest.expert"),
    ],
)
def test_validation_refuses_by_name_and_keeps_nothing(
    owners: Owners,
    law_s: tuple[RouterManifest, ShardSums],
    tmp_path: Path,
    change: Callable[[dict[str, Any], ShardSums], Changed],
    kind: str,
    field: str,
) -> None:
    manifest, sums = law_s
    before, known = files_below(owners.server), list(owners.law.client.contributions())
    changed, other = change(manifest.model_dump(), deepcopy(sums))
    path = written(tmp_path / "file", RouterManifest.model_validate(changed), other)
    with pytest.raises(CoordinatorError) as caught:
        send(owners.law, path)
    problem = caught.value.problem()
    assert (problem.type, problem.field) == (f"urn:moerge:problem:{kind}", field)
    assert files_below(owners.server) == before
    assert list(owners.law.client.contributions()) == known


@pytest.mark.parametrize("content", [b"not a statistics file", b"\2\0\0\0\0\0\0\0{}", b"\xff" * 64])
def test_garbage_is_refused_and_not_kept(owners: Owners, tmp_path: Path, content: bytes) -> None:
    before = files_below(owners.server)
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(CoordinatorError) as caught:
        send(owners.law, tmp_path / "file")
    assert (caught.value.problem().status, caught.value.where) == (422, "header")
    assert files_below(owners.server) == before


def test_a_truncated_statistics_file_is_refused(owners: Owners, tmp_path: Path) -> None:
    path = written(tmp_path / "file", *honest(owners.server, owners.law, owners.trunk))
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(CoordinatorError) as caught:
        send(owners.law, path)
    assert caught.value.where == "body"


def test_a_contribution_that_was_never_uploaded_is_refused(owners: Owners) -> None:
    with pytest.raises(CoordinatorError) as caught:
        owners.law.client.contribute(NewContribution(sha256="0" * 64))
    assert (caught.value.problem().status, caught.value.where) == (409, "sha256")


# --- the chunks below it


def request(owners: Owners, member: Member, method: str, path: str, **kwargs: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {member.token}", **kwargs.pop("headers", {})}
    return httpx.request(method, f"{owners.server.url}/v1{path}", headers=headers, **kwargs)


def opened(owners: Owners, member: Member, upload: NewUpload) -> Upload:
    response = request(owners, member, "POST", "/uploads", json=upload.model_dump())
    return Upload.model_validate_json(response.raise_for_status().content)


def put(owners: Owners, member: Member, upload: Upload, name: str, body: bytes) -> httpx.Response:
    headers = {"Content-Digest": content_digest(name)}
    return request(owners, member, "PUT", f"/uploads/{upload.id}/chunks/{name}", content=body, headers=headers)


def of(data: bytes, *pieces: bytes, encoding: Any = "identity") -> NewUpload:
    chunks = [Chunk(sha256=sha256_hex(piece), size=len(piece)) for piece in pieces or (data,)]
    return NewUpload(sha256=sha256_hex(data), size=len(data), encoding=encoding, chunks=chunks)


@pytest.mark.parametrize(
    ("body", "kind"), [(b"123456", "truncated"), (b"12345678", "invalid-request"), (b"7654321", "wrong-digest")]
)
def test_a_chunk_that_is_not_what_its_name_says_is_refused(owners: Owners, body: bytes, kind: str) -> None:
    upload = opened(owners, owners.law, of(b"1234567"))
    response = put(owners, owners.law, upload, sha256_hex(b"1234567"), body)
    assert response.headers["Content-Type"] == "application/problem+json"
    assert response.json()["type"] == f"urn:moerge:problem:{kind}"
    assert response.json()["field"] == sha256_hex(b"1234567")
    assert opened(owners, owners.law, of(b"1234567")).missing == [sha256_hex(b"1234567")]


def test_a_chunk_without_its_content_digest_is_refused(owners: Owners) -> None:
    upload = opened(owners, owners.law, of(b"abc"))
    path = f"/uploads/{upload.id}/chunks/{sha256_hex(b'abc')}"
    wrong = base64.b64encode(b"0" * 32).decode()
    for headers in ({}, {"Content-Digest": f"sha-256=:{wrong}:"}):
        response = request(owners, owners.law, "PUT", path, content=b"abc", headers=headers)
        assert (response.status_code, response.json()["field"]) == (422, "Content-Digest")


def test_an_interrupted_upload_goes_on_where_it_was(owners: Owners) -> None:
    pieces = [b"first" * 9, b"second" * 9]
    whole = b"".join(pieces)
    upload = opened(owners, owners.law, of(whole, *pieces))
    names = [sha256_hex(piece) for piece in pieces]
    assert upload.missing == names
    assert put(owners, owners.law, upload, names[0], pieces[0]).status_code == 204
    assert request(owners, owners.law, "POST", f"/uploads/{upload.id}/commit").status_code == 409
    again = opened(owners, owners.law, of(whole, *pieces))
    assert (again.id, again.missing) == (upload.id, names[1:])
    assert put(owners, owners.law, upload, names[1], pieces[1]).status_code == 204
    for _ in range(2):
        stored = request(owners, owners.law, "POST", f"/uploads/{upload.id}/commit")
        assert stored.json() == {"sha256": sha256_hex(whole), "size": len(whole)}
    assert opened(owners, owners.law, of(whole, *pieces)).missing == []


def test_a_size_that_its_content_contradicts_is_refused(owners: Owners) -> None:
    announced = of(b"right digest").model_copy(update={"size": 13})
    upload = opened(owners, owners.law, announced)
    put(owners, owners.law, upload, announced.sha256, b"right digest")
    assert request(owners, owners.law, "POST", f"/uploads/{upload.id}/commit").status_code == 422


def test_the_same_requests_at_once_answer_the_same(owners: Owners, tmp_path: Path) -> None:
    """Commits of one upload, then registrations of one contribution, six at a time."""
    manifest, sums = honest(owners.server, owners.law, owners.trunk, first=7000)
    for turn in range(4):
        changed = manifest.model_copy(update={"shards": [sha256_hex(bytes([turn]))]})
        data = written(tmp_path / "file", changed, sums).read_bytes()
        pieces = [data[start : start + 2000] for start in range(0, len(data), 2000)]
        upload = opened(owners, owners.law, of(data, *pieces))
        for name, piece in zip(upload.missing, pieces, strict=True):
            put(owners, owners.law, upload, name, piece)
        digest, path = sha256_hex(data), f"/uploads/{upload.id}/commit"
        with ThreadPoolExecutor(6) as pool:
            commits = [pool.submit(request, owners, owners.law, "POST", path, json={}) for _ in range(6)]
            assert {(each.result().status_code, each.result().json()["sha256"]) for each in commits} == {(200, digest)}
            new = NewContribution(sha256=digest)
            calls = [pool.submit(owners.law.client.contribute, new) for _ in range(6)]
            [first, *others] = [call.result() for call in calls]
        assert others == [first] * 5
        assert (owners.server.home / "blobs" / digest[:2] / digest).read_bytes() == data


def test_an_active_contribution_is_not_checked_again(
    owners: Owners, law_s: tuple[RouterManifest, ShardSums], tmp_path: Path
) -> None:
    sent = send(owners.law, written(tmp_path / "file", *law_s))
    with owners.server.client() as operator:
        before = len(list(operator.workflows()))
        again = request(owners, owners.law, "PUT", f"/contributions/{sent.digest}", json={"software": {"other": "1"}})
        assert (again.status_code, again.json()["state"], again.json()["result"]) == (202, "done", sent.digest)
        assert len(list(operator.workflows())) == before


def test_what_one_owner_holds_another_must_send(owners: Owners) -> None:
    data = b"held by one owner"
    upload = opened(owners, owners.law, of(data))
    put(owners, owners.law, upload, sha256_hex(data), data)
    request(owners, owners.law, "POST", f"/uploads/{upload.id}/commit").raise_for_status()
    assert opened(owners, owners.law, of(data)).missing == []
    assert opened(owners, owners.art, of(data)).missing == [sha256_hex(data)]
    assert put(owners, owners.art, upload, sha256_hex(data), data).status_code == 404


@pytest.mark.parametrize(
    ("plain", "sent", "encoding"),
    [
        (b"what was promised", b"what came instead", "identity"),
        (b"0" * 100, zstandard.compress(b"0" * 2**28), "zstd"),
        (b"0" * 100, b"no zstd frame", "zstd"),
        (b"0" * 100, zstandard.compress(b"0" * 50), "zstd"),
        (b"0" * 100, b"0" * 99, "identity"),
    ],
)
def test_chunks_that_make_another_whole_are_refused_and_forgotten(
    owners: Owners, plain: bytes, sent: bytes, encoding: str
) -> None:
    """Also a frame that would grow to 256 MiB: it is stopped at the announced size."""
    before = files_below(owners.server)
    announced = of(plain, sent, encoding=encoding)
    upload = opened(owners, owners.law, announced)
    assert put(owners, owners.law, upload, sha256_hex(sent), sent).status_code == 204
    response = request(owners, owners.law, "POST", f"/uploads/{upload.id}/commit")
    assert (response.status_code, response.json()["type"]) == (422, "urn:moerge:problem:wrong-digest")
    assert files_below(owners.server) == before
    assert opened(owners, owners.law, announced).missing == [sha256_hex(sent)]
