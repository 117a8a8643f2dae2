"""Uploads and contributions over REST: refusals, interruptions, repeated and simultaneous requests."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path

import pytest

from moerge.errors import CoordinatorError
from moerge.statistics.accumulate import ShardSums
from moerge_proto.contributions import NewContribution
from moerge_proto.digests import content_digest, sha256_hex
from moerge_proto.statistics_file import RouterManifest
from support.federation import Owners, files_below, honest, owners_in, send
from support.statistics import written
from support.uploads import RawClient, announced

Honest = tuple[RouterManifest, ShardSums]


@pytest.fixture(scope="module")
def owners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Owners]:
    with owners_in(tmp_path_factory.mktemp("contributions")) as owners:
        yield owners


@pytest.fixture(scope="module")
def law_s(owners: Owners) -> Honest:
    """An honest contribution of law."""
    return honest(owners.server, owners.law, owners.body, first=1000)


def test_an_invalid_contribution_is_refused_and_not_kept(owners: Owners, law_s: Honest, tmp_path: Path) -> None:
    manifest, sums = deepcopy(law_s)
    sums.arrays["layers.2.gram"][0] = 2**62
    before, known = files_below(owners.server), list(owners.law.client.contributions())
    with pytest.raises(CoordinatorError) as caught:
        send(owners.law, written(tmp_path / "file", manifest, sums))
    problem = caught.value.problem()
    assert (problem.type, problem.field) == ("urn:moerge:problem:invalid-contribution", "layers.2.gram")
    assert files_below(owners.server) == before
    assert list(owners.law.client.contributions()) == known


@pytest.fixture(scope="module")
def law(owners: Owners) -> RawClient:
    return RawClient(owners.server.url, owners.law.token)


def test_a_chunk_with_another_digest_is_refused(law: RawClient) -> None:
    name, wrong = sha256_hex(b"abc"), content_digest("0" * 64)
    path = f"/uploads/{law.open(announced(b'abc')).id}/chunks/{name}"
    for content, headers, field in (
        (b"xyz", {"Content-Digest": content_digest(name)}, name),
        (b"abc", {}, "Content-Digest"),
        (b"abc", {"Content-Digest": wrong}, "Content-Digest"),
    ):
        response = law.request("PUT", path, content=content, headers=headers)
        assert response.headers["Content-Type"] == "application/problem+json"
        assert (response.status_code, response.json()["field"]) == (422, field)
        assert response.json()["type"] == "urn:moerge:problem:wrong-digest"


def test_an_interrupted_upload_continues_where_it_was(law: RawClient) -> None:
    pieces = [b"first" * 9, b"second" * 9]
    whole = b"".join(pieces)
    names = [sha256_hex(piece) for piece in pieces]
    upload = law.open(announced(whole, *pieces))
    assert law.put(upload, pieces[0]).status_code == 204
    assert law.commit(upload).status_code == 409
    again = law.open(announced(whole, *pieces))
    assert (again.id, again.missing) == (upload.id, names[1:])
    assert law.put(upload, pieces[1]).status_code == 204
    stored = law.commit(upload)
    assert stored.json() == {"sha256": sha256_hex(whole), "size": len(whole)}


def test_equal_requests_at_once_get_equal_answers(owners: Owners, law: RawClient, tmp_path: Path) -> None:
    """Commits of one upload, then registrations of one contribution, six at a time."""
    manifest, sums = honest(owners.server, owners.law, owners.body, first=7000)
    for turn in range(4):
        changed = manifest.model_copy(update={"shards": [sha256_hex(bytes([turn]))]})
        data = written(tmp_path / "file", changed, sums).read_bytes()
        pieces = [data[start : start + 2000] for start in range(0, len(data), 2000)]
        upload = law.open(announced(data, *pieces))
        for piece in pieces:
            law.put(upload, piece)
        digest = sha256_hex(data)
        with ThreadPoolExecutor(6) as pool:
            commits = [pool.submit(law.commit, upload) for _ in range(6)]
            assert {(commit.result().status_code, commit.result().json()["sha256"]) for commit in commits} == {
                (200, digest)
            }
            new = NewContribution(sha256=digest)
            calls = [pool.submit(owners.law.client.contribute, new) for _ in range(6)]
            [first, *others] = [call.result() for call in calls]
        assert others == [first] * 5
        assert (owners.server.home / "blobs" / digest[:2] / digest).read_bytes() == data


def test_an_active_contribution_is_not_checked_again(
    owners: Owners, law: RawClient, law_s: Honest, tmp_path: Path
) -> None:
    sent = send(owners.law, written(tmp_path / "file", *law_s))
    with owners.server.client() as operator:
        before = len(list(operator.workflows()))
        again = law.request("PUT", f"/contributions/{sent.digest}", json={"software": {"other": "1"}})
        assert (again.status_code, again.json()["state"], again.json()["result"]) == (202, "done", sent.digest)
        assert len(list(operator.workflows())) == before
