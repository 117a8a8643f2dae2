"""Whoever can send a keeper files, or reach its machine: nothing listens, and a wrong file costs little."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from moerge.cli.keeper import app
from moerge.errors import MoergeError
from moerge.masks.answer_file import answer, read_request
from moerge.masks.keeper import Keeper, KeeperError
from moerge_proto.masks import MAX_REQUEST_BYTES, MasksRequest
from moerge_proto.statistics_file import MAX_SUMMED, RouterManifest
from support.masked import MaskedOwner, keeper_of
from support.statistics import honest_sums, manifest_of

OWNERS = [MaskedOwner(domain) for domain in ("art", "code", "law")]
LISTENING = "uvicorn", "starlette", "fastapi", "http.server", "socketserver"


@pytest.fixture
def keeper(tmp_path: Path) -> Keeper:
    return keeper_of(tmp_path / "keeper", OWNERS)


def test_a_keeper_has_no_command_that_listens() -> None:
    """As a service, it parsed 8 MiB of a stranger for 22 s, with 3.7 GB, while all others waited."""
    assert {command.name or command.callback.__name__ for command in app.registered_commands if command.callback} == {
        "init", "approve", "answer", "show",
    }  # fmt: skip
    code = f"import sys, moerge.masks.answer_file, moerge.masks.keeper; print({LISTENING!r} & sys.modules.keys())"
    code = code.replace(repr(LISTENING), repr(set(LISTENING)))
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603
    assert shown.stdout.strip() == "set()"


def test_a_file_without_end_is_refused_after_a_bounded_part(tmp_path: Path) -> None:
    with pytest.raises(MoergeError, match="longer than 1,048,576 bytes"):
        read_request(Path("/dev/zero"))
    (tmp_path / "long").write_bytes(b'{"parts": [' + b'{"owner": "x"},' * 600_000)
    with pytest.raises(MoergeError, match="longer than 1,048,576 bytes"):
        read_request(tmp_path / "long")


def test_parsing_ends_after_a_bounded_number_of_parts() -> None:
    content = json.dumps({"parts": [{}] * (MAX_REQUEST_BYTES // 4 - 5)})
    assert len(content) <= MAX_REQUEST_BYTES
    with pytest.raises(ValidationError) as caught:
        MasksRequest.model_validate_json(content)
    assert caught.value.error_count() <= 10 * MAX_SUMMED


@pytest.mark.parametrize("shape", [{"hidden_size": 2**20}, {"layers": 2**12}])
def test_owners_choose_no_answer_of_terabytes(keeper: Keeper, shape: dict[str, int]) -> None:
    part = OWNERS[0].part([keeper.public_key])
    with pytest.raises(ValidationError, match="less than or equal"):
        MasksRequest.model_validate({"parts": [part.model_copy(update=shape).model_dump()]})
    manifest = manifest_of(honest_sums(8, 512, 1, 8, 0), 1).model_dump() | shape | {"keepers": [keeper.public_key]}
    manifest["exponents"] = [0] * manifest["layers"]
    with pytest.raises(ValidationError, match="keepers: expected none with H above 16384"):
        RouterManifest.model_validate(manifest)


def test_repeated_and_refused_requests_leave_no_rows(keeper: Keeper, tmp_path: Path) -> None:
    """An owner who works with the coordinator could fill the journal with them."""
    parts = [owner.part([keeper.public_key]) for owner in OWNERS]
    path, size = tmp_path / "request.json", 0
    for asked in (parts, parts[::-1], parts[:2], parts):
        path.write_text(MasksRequest(parts=asked).model_dump_json())
        try:
            answer(keeper, path, tmp_path / "answer")
        except KeeperError:
            assert len(asked) == 2
        size = size or sum(file.stat().st_size for file in (tmp_path / "keeper").iterdir())
    assert len(keeper.cohorts()) == 1
    assert sum(file.stat().st_size for file in (tmp_path / "keeper").iterdir()) == size
