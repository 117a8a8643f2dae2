"""Documents in an S3 store are those of the same local files; what can't be read is an error with the remedy."""

import gzip
import json
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]
import pytest
from obstore.store import S3Store

from moerge.blobs.s3 import S3
from moerge.documents.buckets import Buckets
from moerge.documents.files import data_files
from moerge.documents.reader import BadLines
from moerge.errors import MoergeError
from support.documents import documents

TEXTS = [f"document {number} \u00e9" for number in range(3000)]


def read(source: object) -> list[str]:
    return list(documents(data_files(str(source)), "text", BadLines()))


@pytest.fixture
def store(s3: S3, monkeypatch: pytest.MonkeyPatch) -> S3Store:
    """The store of this environment; each test has its own credentials."""
    assert s3.endpoint is not None
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
    Buckets.clear_instance_cache()
    return S3Store(s3.bucket, endpoint=s3.endpoint, prefix=s3.prefix, client_options={"allow_http": True})


def test_bucket_folders_and_patterns_match_local_ones(tmp_path: Path, s3: S3, store: S3Store) -> None:
    lines = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()
    (tmp_path / "sub").mkdir()
    (tmp_path / "b.jsonl").write_bytes(lines)
    (tmp_path / "sub" / "c.jsonl.gz").write_bytes(gzip.compress(lines))
    pyarrow.parquet.write_table(pa.table({"text": TEXTS[:9]}), tmp_path / "a.parquet")
    (tmp_path / "left.pdf").touch()
    for path in tmp_path.rglob("*.*"):
        obstore.put(store, str(path.relative_to(tmp_path)), path)
    url = f"s3://{s3.bucket}/{s3.prefix}"
    for source in ("", "/", "/*.jsonl", "/sub/*.gz", "/b.jsonl", "/**/*.*l*"):
        local, remote = data_files(f"{tmp_path}{source}"), data_files(f"{url}{source}")
        assert [(file.url.removeprefix(url), file.size) for file in remote] == [
            (file.url.removeprefix(str(tmp_path)), file.size) for file in local
        ]
        assert read(f"{url}{source}") == read(f"file://{tmp_path}{source}") == read(f"{tmp_path}{source}")
    messages: list[str] = []
    data_files(f"s3://{s3.bucket}", say=messages.append)  # the whole bucket
    assert "files of unknown formats" in messages[0]


def test_a_source_in_a_store_that_can_t_be_read_is_named(
    s3: S3, store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    obstore.put(store, "a.jsonl", b'{"text": "a"}\n')
    url = f"s3://{s3.bucket}/{s3.prefix}"
    [file] = data_files(f"{url}/a.jsonl")

    def refused(source: str) -> MoergeError:
        with pytest.raises(MoergeError) as caught:
            data_files(source)
        assert caught.value.where == f"`data` {source}"
        return caught.value

    assert refused(f"{url}/*.parquet").what == "no file matches"
    assert "NoSuchBucket" in refused("s3://nosuchbucket/a.jsonl").what
    obstore.delete(store, "a.jsonl")
    with pytest.raises(MoergeError, match="can't be read") as caught:
        list(documents([file], "text", BadLines()))
    assert caught.value.where == f"{url}/a.jsonl"
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    Buckets.clear_instance_cache()
    assert "403" in refused(f"{url}/a.jsonl").what
    assert "AWS_*" in refused(f"{url}/*.jsonl").todo
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert "AWS_ACCESS_KEY_ID" in refused(url).todo


def test_failed_request_during_listing_is_an_error(s3: S3, store: S3Store) -> None:
    """Documents that aren't found count as removed."""
    for name in ("a/b.jsonl", "a/c/d.jsonl"):
        obstore.put(store, name, b'{"text": "a"}\n')

    class Failing(Buckets):
        async def _ls(self, path: str, *args: Any, **kwargs: Any) -> Any:
            return await super()._ls("nosuchbucket" if path.endswith("/c") else path, *args, **kwargs)

    with pytest.raises(ValueError, match="NoSuchBucket"):
        Failing().find(f"{s3.bucket}/{s3.prefix}")
