"""A keeper's answers: their bytes, and files that are no requests."""

from pathlib import Path

import pytest

from moerge.errors import MoergeError
from moerge.masks.answer_file import answer, read_request
from moerge.masks.keeper import Keeper, KeeperError
from moerge_proto.masks import MasksRequest, MaskSums, summed
from support.masked import MaskedOwner, keeper_of

OWNERS = [MaskedOwner(domain) for domain in ("art", "code", "law")]


@pytest.fixture
def keeper(tmp_path: Path) -> Keeper:
    return keeper_of(tmp_path / "keeper", OWNERS)


def written(folder: Path, keeper: Keeper, owners: list[MaskedOwner]) -> tuple[MasksRequest, Path]:
    request, path = MasksRequest(parts=[owner.part([keeper.public_key]) for owner in owners]), folder / "request.json"
    path.write_text(request.model_dump_json())
    return request, path


def test_an_answer_is_the_sum_of_the_masks_and_says_of_what(keeper: Keeper, tmp_path: Path) -> None:
    request, path = written(tmp_path, keeper, OWNERS)
    out = tmp_path / "answer"
    assert answer(keeper, path, out) == request
    content = out.read_bytes()
    assert content == b"".join(summed(request, keeper.public_key, keeper.seeds(request)))
    assert len(content) == request.answer_bytes
    with MaskSums(out, 4, 2, request.domains) as sums:
        assert (sums.request, sums.keeper) == (request.digest, keeper.public_key)
    answer(keeper, path, out)
    assert out.read_bytes() == content
    assert len(keeper.cohorts()) == 1


def test_a_refusal_writes_nothing(keeper: Keeper, tmp_path: Path) -> None:
    _, path = written(tmp_path, keeper, OWNERS[:2])
    with pytest.raises(KeeperError, match="2 owners"):
        answer(keeper, path, tmp_path / "answer")
    assert not (tmp_path / "answer").exists()
    assert keeper.cohorts() == []


def test_a_file_that_is_no_request_is_named(tmp_path: Path) -> None:
    path = tmp_path / "request.json"
    for content, where in ((b"", ""), (b"{}", "parts"), (b'{"parts": [{"owner": "x"}]}', "parts.0.domain")):
        path.write_bytes(content)
        with pytest.raises(MoergeError) as caught:
            read_request(path)
        assert caught.value.where == f"{path}: {where}"


def test_an_answer_that_does_not_fit_on_the_disk_is_not_begun(
    keeper: Keeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, path = written(tmp_path, keeper, OWNERS)

    class Full:
        free = request.answer_bytes - 1

    monkeypatch.setattr("shutil.disk_usage", lambda folder: Full)
    with pytest.raises(MoergeError, match="free; the answer has"):
        answer(keeper, path, tmp_path / "answer")
    assert keeper.cohorts() == []
