"""Contributions of a user who gives odd documents, or whose run was killed at an odd moment."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from moerge.errors import MoergeError
from moerge.models.expert_folder import DenseExpert
from moerge.models.stored import SINGLE
from moerge.models.tokens import Tokens
from moerge.statistics.contribution import body_contribution
from support.models import expert

DOCUMENTS = [Tokens([(7 * row + 3 * place) % 250 for place in range(60)]) for row in range(90)]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> DenseExpert:
    return DenseExpert("code", expert(tmp_path_factory.mktemp("expert"), 1))


class Shrinking:
    """Documents of which some are gone when they are read again."""

    def __init__(self) -> None:
        self._left = len(DOCUMENTS)

    def __iter__(self) -> Iterator[Tokens]:
        left, self._left = self._left, 40
        return iter(DOCUMENTS[:left])


@pytest.mark.parametrize("documents", [iter(DOCUMENTS), Shrinking()], ids=["iterator", "shrinking"])
def test_documents_changed_between_readings_are_refused(
    own: DenseExpert, tmp_path: Path, documents: Iterable[Tokens]
) -> None:
    path = tmp_path / "sums"
    with pytest.raises(MoergeError, match="not the same when they were read again") as caught:
        body_contribution(own, documents, path)
    assert caught.value.where == "code"
    assert not path.exists()
    assert body_contribution(own, DOCUMENTS, path).is_file()
    assert [item.name for item in tmp_path.iterdir()] == ["sums"]


def test_expert_replaced_during_the_pass_is_refused(tmp_path: Path) -> None:
    own, other = (DenseExpert("code", expert(tmp_path / str(seed), seed)) for seed in (1, 2))

    def replaced() -> Iterator[Tokens]:
        yield from DOCUMENTS
        if begun:
            (other.folder / SINGLE).replace(own.folder / SINGLE)
        begun.append(True)

    class Texts:
        def __iter__(self) -> Iterator[Tokens]:
            return replaced()

    begun = list[bool]()
    with pytest.raises(MoergeError, match="replaced or changed during the work") as caught:
        body_contribution(own, Texts(), tmp_path / "sums")
    assert caught.value.where == str(own.folder / SINGLE)


def test_rerun_after_kill_at_join_removes_partial_files(own: DenseExpert, tmp_path: Path) -> None:
    path = body_contribution(own, DOCUMENTS, tmp_path / "sums")
    path.rename(tmp_path / "sums.journal")
    for name in ("sums.2.part", ".sums.2.part.01234567.tmp", ".sums.0123456789abcdef.states.01234567.tmp"):
        (tmp_path / name).write_bytes(b"of a killed run")
    assert body_contribution(own, DOCUMENTS, path) == path
    assert [item.name for item in tmp_path.iterdir()] == ["sums"]


def test_a_contribution_removes_no_file_of_others(own: DenseExpert, tmp_path: Path) -> None:
    others = {"adam.states", "sum.2.part", ".adam.states.tmp"}
    for name in others:
        (tmp_path / name).write_bytes(b"of the user")
    body_contribution(own, DOCUMENTS, tmp_path / "sums")
    assert {item.name for item in tmp_path.iterdir()} == {"sums", *others}
