"""Router contributions: each document is sent once, and what is sent follows the data."""

import shutil
from pathlib import Path

import obstore
import pytest
from obstore.store import S3Store

from moerge.blobs.s3 import S3
from moerge.documents.buckets import Buckets
from moerge.errors import MoergeError
from moerge_proto.bodies import Body
from moerge_proto.statistics_file import RouterManifest, StatisticsFile, StatisticsSettings, TextBefore
from support.models import texts
from support.stages import POLICY, MemoryClient, contributed, run_of

ASK = {**POLICY, "mode": "ask"}


def lines(home: Path, keep: slice) -> None:
    """Keeps some of the documents only."""
    path = home / "texts.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[keep]))


def test_second_run_sends_nothing_and_returns_the_same_result(folder: Path, home: Path, client: MemoryClient) -> None:
    first = contributed(folder, home, client)
    assert [(row.split, row.documents) for row in first] == [("statistics", 40)]
    assert contributed(folder, home, client) == first
    assert len(client.uploaded) == 1


def test_each_split_is_a_contribution_of_its_own(folder: Path, home: Path, client: MemoryClient) -> None:
    rows = contributed(folder, home, client, tuning_share=0.4)
    assert [row.split for row in rows] == ["statistics", "tuning"]
    assert sum(row.documents for row in rows) == 40


def test_a_file_and_the_same_file_by_url_give_the_same_bytes(
    folder: Path, home: Path, client: MemoryClient, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert s3.endpoint is not None
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
    Buckets.clear_instance_cache()
    store = S3Store(s3.bucket, endpoint=s3.endpoint, client_options={"allow_http": True})
    obstore.put(store, f"{s3.prefix}/texts.jsonl", home / "texts.jsonl")
    contributed(folder, home, client, tuning_share=0.4)
    for url in (f"s3://{s3.bucket}/{s3.prefix}/*.jsonl", f"file://{home}/texts.jsonl"):
        other, sent = home / url.partition(":")[0], MemoryClient(client.current)
        other.mkdir()
        shutil.copy(home / "key", other)
        contributed(folder, other, sent, tuning_share=0.4, data=[url])
        assert [path.read_bytes() for path in sent.uploaded] == [path.read_bytes() for path in client.uploaded]
        assert len(contributed(folder, home, client, tuning_share=0.4, data=[url])) == len(client.uploaded) == 2


def test_text_before_is_another_setting_that_replaces_the_sent_contribution(
    folder: Path, home: Path, client: MemoryClient, body: Body
) -> None:
    """The same documents count, once."""
    [plain] = contributed(folder, home, client)
    before = TextBefore(tokens=32, piece=32)
    [behind] = contributed(folder, home, client, statistics=StatisticsSettings(before=before))
    assert (behind.tokens, behind.documents) == (plain.tokens, plain.documents)
    assert not client.rows[plain.digest].active
    with StatisticsFile(client.uploaded[-1]) as file:
        assert isinstance(file.manifest, RouterManifest)
        assert file.manifest.settings.before == before
        assert file.manifest.exponents == list(body.exponents)
    assert contributed(folder, home, client, statistics=StatisticsSettings(before=before)) == [behind]
    assert contributed(folder, home, client) != [behind]


def test_law_4_lost_contribution_is_sent_again_unchanged(folder: Path, home: Path, client: MemoryClient) -> None:
    [sent] = contributed(folder, home, client)
    client.rows.clear()
    assert contributed(folder, home, client) == [sent]
    assert client.uploaded[0] == client.uploaded[1]


def test_law_4_documents_of_a_lost_file_are_sent_anew(folder: Path, home: Path, client: MemoryClient) -> None:
    [sent] = contributed(folder, home, client)
    client.rows.clear()
    client.uploaded[0].unlink()
    [anew] = contributed(folder, home, client)
    assert anew.documents == sent.documents
    assert len(client.rows) == 1


def test_removed_documents_cause_a_replacing_contribution(folder: Path, home: Path, client: MemoryClient) -> None:
    [sent] = contributed(folder, home, client)
    lines(home, slice(0, 30))
    [left] = contributed(folder, home, client)
    assert left.documents == 30
    assert not client.rows[sent.digest].active


def test_a_split_without_documents_is_withdrawn(folder: Path, home: Path, client: MemoryClient) -> None:
    _, tuning = contributed(folder, home, client, tuning_share=0.4)
    rows = contributed(folder, home, client)  # all documents are of the statistics' split now
    assert {row.split for row in rows} == {"statistics"}
    assert sum(row.documents for row in rows) == 40
    assert client.rows[tuning.digest].withdrawn is not None


def test_contribution_refused_by_its_owner_is_not_sent(
    folder: Path, home: Path, client: MemoryClient, body: Body
) -> None:
    with run_of(folder, home, client, policy=ASK) as run:
        assert run.contribute(body) == []
        [item] = run.history.asked()
        run.history.note(item, "refused")
    assert contributed(folder, home, client, policy=ASK) == []
    assert client.uploaded == []
    with run_of(folder, home, client, policy=ASK) as run:
        run.history.note(item, "approved")
        [sent] = run.contribute(body)
    assert sent.digest == item.digest


def test_too_few_documents_are_kept_here(folder: Path, home: Path, client: MemoryClient) -> None:
    """40 are enough for the first file; 5 more wait, for they are all that tells it from the next one."""
    with pytest.raises(MoergeError, match="too little data: "):
        contributed(folder, home, client, policy={"min_documents": 41, "min_tokens": 1})
    assert client.uploaded == []
    policy = {"min_documents": 20, "min_tokens": 1}
    [sent] = contributed(folder, home, client, policy=policy)
    texts(home / "more.jsonl", 2, 5)
    (home / "texts.jsonl").write_text((home / "texts.jsonl").read_text() + (home / "more.jsonl").read_text())
    (home / "more.jsonl").unlink()
    assert contributed(folder, home, client, policy=policy) == [sent]
    assert len(client.uploaded) == 1


def test_what_waits_for_an_answer_follows_the_data(folder: Path, home: Path, client: MemoryClient, body: Body) -> None:
    contributed(folder, home, client, policy=ASK)
    texts(home / "texts.jsonl", 1, 60)
    with run_of(folder, home, client, policy=ASK) as run:
        assert run.contribute(body) == []
        [item] = run.history.asked()
    assert " 60 documents" in item.about
