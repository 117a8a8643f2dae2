"""A contribution that can't come from an honest pass under the current trunk is refused by name, and nothing stays."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from contract.conftest import House
from moerge_proto.problems import ProblemType
from moerge_proto.statistics_file import Int64, Manifest, gram_length
from support.contributions import Contributor, kept, problem_of, upload

Layers = list[tuple[Int64, Int64]]
Change = Callable[[Manifest, Layers], tuple[Manifest, Layers]]
INVALID = ProblemType.INVALID_CONTRIBUTION


def _manifest(**changes: object) -> Change:
    return lambda manifest, layers: (manifest.model_copy(update=changes), layers)


def _gram(layer: int, entry: int, value: int) -> Change:
    def change(manifest: Manifest, layers: Layers) -> tuple[Manifest, Layers]:
        layers[layer][0][entry] = value
        return manifest, layers

    return change


def _cross(layer: int, factor: int) -> Change:
    def change(manifest: Manifest, layers: Layers) -> tuple[Manifest, Layers]:
        layers[layer][1][:] *= factor
        return manifest, layers

    return change


def _cross_overflow(manifest: Manifest, layers: Layers) -> tuple[Manifest, Layers]:
    layers[1][1][0] = -(2**62)
    return manifest, layers


def _narrow(manifest: Manifest, layers: Layers) -> tuple[Manifest, Layers]:
    narrow = manifest.model_copy(update={"hidden_size": 16})
    return narrow, [(gram[: gram_length(16)], cross[:16]) for gram, cross in layers]


def _shallow(manifest: Manifest, layers: Layers) -> tuple[Manifest, Layers]:
    return manifest.model_copy(update={"layers": 2, "exponents": manifest.exponents[:2]}), layers[:2]


def _half_the_tokens(manifest: Manifest, layers: Layers) -> tuple[Manifest, Layers]:
    return manifest.model_copy(update={"tokens": manifest.tokens // 2}), layers


CASES: dict[str, tuple[Change, ProblemType, str]] = {
    "another trunk": (_manifest(trunk="1" * 64), ProblemType.WRONG_TRUNK, "manifest.trunk"),
    "hidden size": (_narrow, INVALID, "manifest.hidden_size"),
    "layers": (_shallow, INVALID, "manifest.layers"),
    "exponents": (_manifest(exponents=[16, 16, 15]), INVALID, "manifest.exponents"),
    "negative diagonal": (_gram(1, 0, -(2**30)), INVALID, "layers.1.gram"),
    "indefinite": (_gram(2, 1, 2**50), INVALID, "layers.2.gram"),
    "gram overflow": (_gram(2, 5, 2**62), INVALID, "layers.2.gram"),
    "cross overflow": (_cross_overflow, INVALID, "layers.1.cross"),
    "cross beyond the gram": (_cross(0, 100), INVALID, "layers.0.cross"),
    "count against trace": (_half_the_tokens, INVALID, "layers.0.gram"),
    "another's domain": (_manifest(domain="founder"), ProblemType.FORBIDDEN, "domain"),
    "made for another owner": (_manifest(owner="founder"), ProblemType.FORBIDDEN, "manifest.owner"),
    "another expert": (_manifest(expert="2" * 64), INVALID, "manifest.expert"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_contribution_is_refused_by_name_and_nothing_of_it_stays(
    house: House, settled: Contributor, tmp_path: Path, case: str
) -> None:
    change, kind, field = CASES[case]
    honest = settled
    before = kept(house.home)
    path = honest.written(tmp_path / "wrong", *change(honest.manifest(case), honest.layers()))
    answer = honest.party.post("/v1/contributions", {"sha256": upload(honest.party, path)})
    problem_of(answer, kind, field)
    assert kept(house.home) == before
    assert honest.send(tmp_path, case).active


def _without_header(data: bytes) -> bytes:
    return b"not a statistics file at all, but longer than eight bytes"


def _truncated(data: bytes) -> bytes:
    return data[:-8]


def _cut_header(data: bytes) -> bytes:
    return data[:100]


def _longer(data: bytes) -> bytes:
    return data + bytes(8)


def _rewritten(edit: Callable[[dict[str, object]], None]) -> Callable[[bytes], bytes]:
    """Another manifest in the header, otherwise the same file."""

    def change(data: bytes) -> bytes:
        end = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:end])
        manifest = json.loads(header["__metadata__"]["manifest"])
        edit(manifest)
        header["__metadata__"]["manifest"] = json.dumps(manifest)
        body = json.dumps(header).encode()
        return len(body).to_bytes(8, "little") + body + data[end:]

    return change


FILES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "no header": (_without_header, "header"),
    "cut in the header": (_cut_header, "header"),
    "cut in the body": (_truncated, "body"),
    "trailing bytes": (_longer, "body"),
    "header not canonical": (_rewritten(lambda manifest: None), "header"),
    "unknown key": (_rewritten(lambda manifest: manifest.update(text="secret")), "manifest.text"),
    "unsorted shards": (_rewritten(lambda manifest: manifest.update(shards=["1" * 64, "0" * 64])), "manifest.shards"),
    "evaluation split": (_rewritten(lambda manifest: manifest.update(split="tuning")), "manifest.split"),
    "exponents beyond JSON": (
        _rewritten(lambda manifest: manifest.update(exponents=[2**60] * 3)),
        "manifest.exponents",
    ),
}


@pytest.mark.parametrize("case", FILES)
def test_what_is_no_statistics_file_is_refused_by_name_and_nothing_of_it_stays(
    house: House, settled: Contributor, tmp_path: Path, case: str
) -> None:
    change, field = FILES[case]
    honest = settled
    before = kept(house.home)
    path = honest.written(tmp_path / "file", honest.manifest(case))
    path.write_bytes(change(path.read_bytes()))
    answer = honest.party.post("/v1/contributions", {"sha256": upload(honest.party, path)})
    problem = problem_of(answer, INVALID)
    assert problem.field.startswith(field)
    assert kept(house.home) == before
    assert honest.send(tmp_path, case).active


def test_a_contribution_that_was_never_uploaded_is_refused(settled: Contributor) -> None:
    answer = settled.party.post("/v1/contributions", {"sha256": "3" * 64})
    problem_of(answer, ProblemType.NOT_READY, "sha256")


def test_a_contribution_with_too_small_a_trace_counts_with_a_warning(settled: Contributor, tmp_path: Path) -> None:
    path = settled.written(tmp_path / "sparse", settled.manifest("sparse", tokens=3 * settled.sums.tokens))
    answer = settled.party.post("/v1/contributions", {"sha256": upload(settled.party, path)})
    assert answer.status_code == 201
    assert [warning.split(":")[0] for warning in answer.json()["warnings"]] == [f"layers.{i}.gram" for i in range(3)]
