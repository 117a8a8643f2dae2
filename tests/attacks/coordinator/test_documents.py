"""A coordinator subtracts sums under two seeds with equal or similar features, to read the documents between them."""

from pathlib import Path

import pytest

from moerge_proto.statistics_file import StatisticsFile
from support.models import texts
from support.stages import MemoryClient, another, run_of, seeded


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("owner")
    seeded(folder)
    return folder


class Owner:
    """An owner's home, and the documents of its contribution under each body."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.folder, self.home, self.client = folder, home, MemoryClient(None)
        self.lines = texts(home / "texts.jsonl", 1, 60).read_text().splitlines(keepends=True)

    def under(self, number: int, documents: list[int]) -> list[int] | None:
        """The number of documents of each contribution under the body of a seed; None: there is none."""
        (self.home / "texts.jsonl").write_text("".join(self.lines[place] for place in documents))
        self.client.current = body = another(self.home, number)
        with run_of(self.folder, self.home, self.client, seed=self.home / f"seed-{number}") as run:
            rows = run.contribute(body)
        return [row.documents for row in rows] if rows else None

    def shards(self) -> list[str]:
        with StatisticsFile(self.client.uploaded[-1]) as file:
            return file.manifest.shards


def test_sums_under_two_bodies_have_the_same_documents_or_differ_by_the_minimum(folder: Path, tmp_path: Path) -> None:
    owner = Owner(folder, tmp_path)
    assert owner.under(1, list(range(40))) == [40]
    before = owner.shards()
    assert owner.under(2, list(range(41))) == [40]  # one added
    assert owner.shards() == before
    assert owner.under(3, list(range(1, 40))) is None  # one removed
    assert owner.under(3, [*range(1, 43)]) is None  # one removed, three added
    assert owner.under(3, list(range(45))) == [45]
    assert owner.under(2, list(range(46))) == [40, 5]  # the first body again: the sixth waits
    assert owner.under(4, list(range(5, 45))) == [40]  # five removed


def test_removed_documents_that_come_back_change_nothing(folder: Path, tmp_path: Path) -> None:
    owner = Owner(folder, tmp_path)
    assert owner.under(1, list(range(40))) == [40]
    assert owner.under(2, list(range(39))) is None
    assert owner.under(2, list(range(41))) == [40]
