"""The wire format: pinned bytes in both directions, and no file but the canonical one is read."""

import base64
import io
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from safetensors.numpy import load

from moerge_proto.digests import sha256_hex
from moerge_proto.statistics_file import (
    MAX_TOKENS,
    BodyManifest,
    DomainCounts,
    HeadManifest,
    Int64,
    Manifest,
    RouterManifest,
    StatisticsFile,
    StatisticsFileError,
    StatisticsSettings,
    SumManifest,
    Sums,
    exponent,
    file_size,
    gram_length,
    write,
)

GOLDEN = Path(__file__).with_name("golden-statistics.base64")
"""Write it anew, on purpose only: python tests/unit/proto/test_statistics_file.py"""

MANIFEST = RouterManifest(
    owner="hospital",
    expert="e" * 64,
    domain="medicine",
    body="7" * 64,
    settings=StatisticsSettings(tokens_per_document=64, context=128, batch_tokens=256),
    hidden_size=3,
    layers=2,
    exponents=[16, 12],
    tokens=9,
    documents=4,
    shards=["1" * 64, "a" * 64],
)
ARRAYS = [
    np.arange(6, dtype=np.int64) - 2,
    np.array([1, -1, 2**61], dtype=np.int64),
    np.arange(6, dtype=np.int64) * 7,
    np.array([0, 5, -(2**61)], dtype=np.int64),
]
BODY_MANIFEST = BodyManifest(
    owner="hospital",
    expert="e" * 64,
    domain="medicine",
    settings=StatisticsSettings(precision="bfloat16"),
    hidden_size=2,
    layers=2,
    attention_sizes=[3, 3],
    vocab_size=5,
    exponents=[16, -4, 8],
    tokens=9,
    documents=4,
    shards=["1" * 64],
    rare_below=10,
)
BODY_ARRAYS = [np.arange(size, dtype=np.int64) for size in (5, 6, 3, 6)]
HEAD_MANIFEST = HeadManifest(
    owner="hospital",
    expert="e" * 64,
    domain="medicine",
    settings=StatisticsSettings(),
    hidden_size=2,
    layers=3,
    exponents=[20],
    tokens=9,
    documents=4,
    shards=["1" * 64],
)
HEAD_ARRAYS = [np.arange(3, dtype=np.int64)]


def content(manifest: Manifest = MANIFEST, arrays: Sequence[Int64] = ARRAYS, layers: range | None = None) -> bytes:
    out = io.BytesIO()
    write(out, manifest, arrays, layers)
    return out.getvalue()


def refusal(folder: Path, data: bytes) -> StatisticsFileError:
    path = folder / "file"
    path.write_bytes(data)
    with pytest.raises(StatisticsFileError) as caught:
        StatisticsFile(path)
    return caught.value


def test_written_bytes_are_the_golden_ones() -> None:
    assert content() == base64.b64decode(GOLDEN.read_bytes())


def test_golden_bytes_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "golden"
    path.write_bytes(base64.b64decode(GOLDEN.read_bytes()))
    with StatisticsFile(path) as file:
        assert file.manifest == MANIFEST
        for array, expected in zip(file.arrays(), ARRAYS, strict=True):
            np.testing.assert_array_equal(array, expected)
        np.testing.assert_array_equal(file.gram(1), ARRAYS[2])
        np.testing.assert_array_equal(file.cross(1), ARRAYS[3])


@pytest.mark.parametrize(
    ("manifest", "arrays", "names"),
    [
        (
            BODY_MANIFEST,
            BODY_ARRAYS,
            ["token_counts", "layers.0.attention_output", "layers.1.attention_input", "layers.1.attention_output"],
        ),
        (HEAD_MANIFEST, HEAD_ARRAYS, ["head_input"]),
    ],
    ids=["body", "head"],
)
def test_contributions_of_an_expert_are_read_back_by_name(
    tmp_path: Path, manifest: Manifest, arrays: list[Int64], names: list[str]
) -> None:
    path = tmp_path / "file"
    path.write_bytes(content(manifest, arrays))
    with StatisticsFile(path) as file:
        assert file.manifest == manifest
        for name, expected in zip(names, arrays, strict=True):
            np.testing.assert_array_equal(file.array(name), expected)
    assert sorted(load(path.read_bytes())) == sorted(names)


def test_a_head_s_journal_has_its_gram_in_the_last_layer_only(tmp_path: Path) -> None:
    for layer, arrays in enumerate([[], [], HEAD_ARRAYS]):
        part, path = range(layer, layer + 1), tmp_path / str(layer)
        path.write_bytes(content(HEAD_MANIFEST, arrays, part))
        with StatisticsFile(path, part) as file:
            assert [array.tolist() for array in file.arrays()] == [array.tolist() for array in arrays]
    assert (tmp_path / "2").read_bytes() == content(HEAD_MANIFEST, HEAD_ARRAYS)


def test_the_name_is_the_digest_of_the_file(tmp_path: Path) -> None:
    out = io.BytesIO()
    assert write(out, MANIFEST, ARRAYS) == sha256_hex(out.getvalue())
    assert file_size(MANIFEST) == len(out.getvalue())


def test_any_safetensors_reader_reads_it() -> None:
    tensors = load(content())
    assert sorted(tensors) == ["layers.0.cross", "layers.0.gram", "layers.1.cross", "layers.1.gram"]
    np.testing.assert_array_equal(tensors["layers.1.gram"], ARRAYS[2])


def test_extra_bytes_are_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, content() + b"\0").field == "body"


def test_a_header_that_claims_another_shape_is_refused(tmp_path: Path) -> None:
    lie = content().replace(b'"shape":[6]', b'"shape":[5]', 1)
    assert refusal(tmp_path, lie).field == "header"


def test_a_header_in_another_order_is_refused(tmp_path: Path) -> None:
    data = content()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    body = json.dumps(dict(reversed(header.items())), separators=(",", ":")).encode().ljust(length)
    assert refusal(tmp_path, data[:8] + body + data[8 + length :]).field == "header"


def test_an_unknown_manifest_field_is_refused_by_name(tmp_path: Path) -> None:
    assert refusal(tmp_path, content().replace(b'\\"owner\\"', b'\\"texts\\"')).field.startswith("manifest.")


def test_a_huge_header_is_refused_before_it_is_read(tmp_path: Path) -> None:
    assert refusal(tmp_path, (2**62).to_bytes(8, "little") + b"{}").field == "header"


@pytest.mark.parametrize("layers", [range(1), range(1, 2)])
def test_a_journal_of_some_layers_is_refused(tmp_path: Path, layers: range) -> None:
    by_name = {name: array for (name, _), array in zip(MANIFEST.layout(), ARRAYS, strict=True)}
    journal = content(MANIFEST, [by_name[name] for name, _ in MANIFEST.part(layers)], layers)
    assert refusal(tmp_path, journal).field == "header"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("shards", ["a" * 64, "1" * 64]),
        ("shards", ["a" * 64, "a" * 64]),
        ("shards", []),
        ("exponents", [16]),
        ("documents", 1),
        ("tokens", 3),
        ("tokens", MAX_TOKENS + 1),
        ("tokens", -5),
        ("documents", 0),
        ("hidden_size", 2**40),
        ("hidden_size", -1),
        ("exponents", [10**6] * 2),
        ("exponents", []),
        ("shards", ["../../x"]),
        ("split", "held-out"),
        ("settings", {"context": 10**30}),
        ("further", 1),
        ("domain", "../medicine"),
        ("body", "7" * 63),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(field: str, value: object) -> None:
    with pytest.raises(ValidationError, match=field):
        RouterManifest.model_validate(MANIFEST.model_dump() | {field: value})


@pytest.mark.parametrize(
    ("arrays", "field"),
    [
        ([ARRAYS[0].astype(np.int32), *ARRAYS[1:]], "layers.0.gram"),
        ([*ARRAYS[:3], ARRAYS[3][:2]], "layers.1.cross"),
        (ARRAYS[:2], "layers.1.gram"),
        ([*ARRAYS, ARRAYS[0]], "body"),
    ],
)
def test_the_writer_refuses_what_the_manifest_does_not_say(arrays: list[Int64], field: str) -> None:
    with pytest.raises(StatisticsFileError) as caught:
        content(arrays=arrays)
    assert caught.value.field == field


@given(size=st.integers(1, 2**16), squared_norm=st.floats(1e-6, 1e18))
def test_exponents_leave_room_whatever_the_vectors_norm(size: int, squared_norm: float) -> None:
    bits = exponent(size, squared_norm)
    assert 2.0**36 * squared_norm * 2.0**bits <= 2.0**62 * (1 + 1e-12)
    assert exponent(size, size) >= exponent(size)
    assert exponent(size) == 16 or 2**36 * size * 2 ** (exponent(size) + 1) > 2**61


def test_gram_length_counts_the_upper_triangle() -> None:
    assert gram_length(5) == len(np.triu_indices(5)[0])


def test_a_sum_has_the_crosses_of_its_domains(tmp_path: Path) -> None:
    counts = [
        DomainCounts(domain=domain, owner=f"{domain}-owner", expert="e" * 64, tokens=9, documents=4, shards=2)
        for domain in ("art", "law")
    ]
    same = MANIFEST.model_dump(include={"body", "settings", "hidden_size", "layers", "exponents"})
    manifest = SumManifest(**same, domains=counts, contributions=["1" * 64, "2" * 64])
    arrays = [np.arange(6, dtype=np.int64), *[np.arange(6, dtype=np.int64) + 10] * 3]
    with (tmp_path / "sum").open("wb") as out:
        write(out, manifest, arrays)
    with Sums(tmp_path / "sum") as file:
        assert (file.manifest, file.manifest.tokens, file.manifest.documents) == (manifest, 18, 8)
        assert list(file.domains.values()) == counts
        assert file.gram(0).tolist() == arrays[0].tolist()
        assert [file.cross(1, domain).tolist() for domain in file.domains] == [[10, 11, 12], [13, 14, 15]]
    with pytest.raises(StatisticsFileError, match="sum"):
        StatisticsFile(tmp_path / "sum")
    for change in ({"domains": counts[::-1]}, {"contributions": ["1" * 64] * 2}):
        with pytest.raises(ValidationError, match="expected sorted and distinct"):
            SumManifest.model_validate(manifest.model_dump() | change)
    (tmp_path / "one").write_bytes(content())
    with Sums(tmp_path / "one") as file:
        assert file.cross(0, "medicine").tolist() == ARRAYS[1].tolist()


if __name__ == "__main__":
    GOLDEN.write_bytes(base64.encodebytes(content()))
