"""Damaged statistics files are refused as StatisticsFileError."""

import io
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moerge_proto.statistics_file import (
    Int64,
    RouterManifest,
    StatisticsFile,
    StatisticsFileError,
    StatisticsSettings,
    exponent,
    write,
)

MANIFEST = RouterManifest(
    owner="hospital",
    expert="e" * 64,
    domain="medicine",
    body="7" * 64,
    settings=StatisticsSettings(tokens_per_document=64),
    hidden_size=2,
    layers=1,
    exponents=[16],
    tokens=9,
    documents=4,
    shards=["1" * 64, "a" * 64],
)


def content(manifest: RouterManifest = MANIFEST) -> bytes:
    arrays: list[Int64] = [np.arange(length, dtype=np.int64) for _, length in manifest.layout()]
    out = io.BytesIO()
    write(out, manifest, arrays)
    return out.getvalue()


GOOD = content()
HEADER = 8 + int.from_bytes(GOOD[:8], "little")


def with_manifest(change: Callable[[dict[str, object]], object]) -> bytes:
    """The file with `change(manifest)` where its manifest stands: text as it is, all else as JSON."""
    header = json.loads(GOOD[8:HEADER])
    changed = change(json.loads(header["__metadata__"]["manifest"]))
    header["__metadata__"]["manifest"] = changed if isinstance(changed, str) else json.dumps(changed)
    body = json.dumps(header, separators=(",", ":")).encode()
    body += b" " * (-len(body) % 8)
    return len(body).to_bytes(8, "little") + body + GOOD[HEADER:]


def refused(path: Path, data: bytes) -> StatisticsFileError:
    path.write_bytes(data)
    with pytest.raises(StatisticsFileError) as caught:
        StatisticsFile(path)
    return caught.value


@settings(max_examples=300, deadline=None)
@given(place=st.integers(0, HEADER - 1), value=st.integers(0, 255))
def test_changed_header_byte_is_refused_or_round_trips(
    tmp_path_factory: pytest.TempPathFactory, place: int, value: int
) -> None:
    path = tmp_path_factory.mktemp("changed") / "file"
    data = GOOD[:place] + bytes([value]) + GOOD[place + 1 :]
    path.write_bytes(data)
    again = io.BytesIO()
    with suppress(StatisticsFileError), StatisticsFile(path) as file:
        write(again, file.manifest, file.arrays())
    assert again.getvalue() in (b"", data)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    for cut in range(len(GOOD)):
        assert refused(tmp_path / "file", GOOD[:cut]).field in ("header", "body"), cut


def test_a_manifest_that_is_not_canonical_json_is_refused(tmp_path: Path) -> None:
    """Other spaces, or another order of keys: the same meaning, another digest."""
    spaced = with_manifest(lambda manifest: json.dumps(manifest, sort_keys=True))
    turned = with_manifest(lambda manifest: json.dumps(dict(reversed(manifest.items())), separators=(",", ":")))
    for data in (spaced, turned):
        assert refused(tmp_path / "file", data).field == "header"


def test_the_same_manifest_in_canonical_form_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(with_manifest(lambda manifest: json.dumps(manifest, sort_keys=True, separators=(",", ":"))))
    with StatisticsFile(path) as file:
        assert file.manifest == MANIFEST


@pytest.mark.parametrize("raw", ["[]", "3", "null", "{}", "[" * 10_000, "{"])
def test_a_manifest_that_is_no_manifest_is_refused(tmp_path: Path, raw: str) -> None:
    assert refused(tmp_path / "file", with_manifest(lambda manifest: raw)).field.startswith(("manifest", "header"))


@pytest.mark.parametrize("value", [2**53, 10**30])
@pytest.mark.parametrize("field", ["exponents", "tokens_per_document", "context", "batch_tokens"])
def test_integers_beyond_canonical_json_are_refused_by_name(tmp_path: Path, field: str, value: int) -> None:
    def change(manifest: dict[str, object]) -> object:
        if field == "exponents":
            return manifest | {"exponents": [value]}
        settings = manifest["settings"]
        assert isinstance(settings, dict)
        return manifest | {"settings": settings | {field: value}}

    assert field in refused(tmp_path / "file", with_manifest(change)).field


def test_sums_of_2_to_the_36_tokens_stay_below_2_to_the_62() -> None:
    """The bound itself, and no bit given away: one bit more would reach past it (or past the 16 that are enough)."""
    for hidden_size in [*range(1, 2050), 4095, 4096, 4097, 8192, 2**20]:
        bits = exponent(hidden_size)
        assert 2**36 * hidden_size * 2**bits <= 2**62
        assert bits == 16 or 2**36 * hidden_size * 2 ** (bits + 1) > 2**62
