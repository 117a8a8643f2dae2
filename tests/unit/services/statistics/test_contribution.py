"""Contributions of a user who gives odd documents, or whose run was killed at an odd moment."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from moerge.errors import MoergeError
from moerge.models.expert_folder import DenseExpert
from moerge.models.stored import SINGLE
from moerge.models.tokens import Tokens
from moerge.statistics.contribution import Computing, body_contribution, head_contribution
from support.models import expert

KINDS = [body_contribution, head_contribution]
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


class Killed:
    """Progress that ends the work after some of its three layers."""

    def __init__(self, layers: int) -> None:
        self._layers, self._left = layers, 0

    @contextmanager
    def track(self, title: str, total: int, unit: str) -> Iterator["Killed"]:
        self._left = self._layers * total // 3
        yield self

    def advance(self, n: int) -> None:
        self._left -= n
        if self._left <= 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("contribution", KINDS)
def test_a_killed_contribution_goes_on_at_its_layer(
    own: DenseExpert, tmp_path: Path, contribution: Callable[..., Path]
) -> None:
    """Also one of which a layer has no sums."""
    whole, path = contribution(own, DOCUMENTS, tmp_path / "whole"), tmp_path / "cut"
    for layers in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            contribution(own, DOCUMENTS, path, computing=Computing(progress=Killed(layers)))
        assert {item.name for item in tmp_path.glob("cut*.part")} == {f"cut.{layer}.part" for layer in range(layers)}
    assert contribution(own, DOCUMENTS, path).read_bytes() == whole.read_bytes()
    assert {item.name for item in tmp_path.iterdir()} == {"cut", "whole"}


@pytest.mark.parametrize("contribution", KINDS)
def test_rerun_after_kill_at_join_removes_partial_files(
    own: DenseExpert, tmp_path: Path, contribution: Callable[..., Path]
) -> None:
    path = contribution(own, DOCUMENTS, tmp_path / "sums")
    path.rename(tmp_path / "sums.journal")
    for name in ("sums.2.part", ".sums.2.part.01234567.tmp", ".sums.0123456789abcdef.states.01234567.tmp"):
        (tmp_path / name).write_bytes(b"of a killed run")
    assert contribution(own, DOCUMENTS, path) == path
    assert [item.name for item in tmp_path.iterdir()] == ["sums"]


def test_a_contribution_removes_no_file_of_others(own: DenseExpert, tmp_path: Path) -> None:
    others = {"adam.states", "sum.2.part", ".adam.states.tmp"}
    for name in others:
        (tmp_path / name).write_bytes(b"of the user")
    body_contribution(own, DOCUMENTS, tmp_path / "sums")
    assert {item.name for item in tmp_path.iterdir()} == {"sums", *others}
