"""Another user of the machine, who reads unfinished work: it is computed from texts that only their owner may read."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from moerge.documents.shards import Shard
from moerge.files import LOCK, work_folder
from moerge.merging.merge import MergeSettings, merge
from moerge.models.bounds import head_exponents
from moerge.models.dense_files import DenseFiles
from moerge.models.tokens import all_counted
from moerge.progress import NoProgress
from moerge.statistics.contribution import Computing
from moerge.statistics.passes import HeadPass
from moerge.statistics.streamed import Streamed
from moerge_lab.training.folder import make_once
from moerge_lab.tuning.request import Wanted
from moerge_lab.tuning.train_process import ROWS
from moerge_lab.tuning.tune import write_rows
from moerge_lab.tuning.version import read_version
from support.merging import SMALL, source
from support.models import expert, texts
from support.versions import contributed_rows, published


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    """New folders have the mode 0755, and files 0644."""
    before = os.umask(0o022)
    yield
    os.umask(before)


class Watched:
    """Progress that notes the modes of a work folder and its files."""

    def __init__(self, work: Path) -> None:
        self._work = work
        self.folders, self.files = set[int](), dict[str, int]()

    @contextmanager
    def track(self, title: str, total: int, unit: str) -> Iterator["Watched"]:
        yield self
        self.advance(0)

    def advance(self, n: int) -> None:
        self.folders.add(mode(self._work))
        self.files |= {path.suffix: mode(path) for path in self._work.iterdir() if path.is_file() and path.name != LOCK}


def test_work_of_a_merge_is_its_user_s_alone(tmp_path: Path) -> None:
    for seed, domain in enumerate(("art", "law")):
        expert(tmp_path / domain, seed, **SMALL)
        texts(tmp_path / f"{domain}.jsonl", seed, 40)
    out = tmp_path / "merged"
    work = work_folder(out)
    work.mkdir()  # of an earlier build
    watched = Watched(work)
    settings = MergeSettings(scored_tokens=0, keep_statistics=True, computing=Computing(progress=watched))
    merge([source(tmp_path, domain) for domain in ("art", "law")], out, settings)
    assert watched.folders == {0o700}
    assert watched.files == {".part": 0o600, ".safetensors": 0o600}
    assert {mode(path) for path in work.glob("*.safetensors")} == {0o600}
    assert (mode(out), {mode(path) for path in out.iterdir()}) == (0o755, {0o644})


def test_hidden_states_are_their_user_s_alone(tmp_path: Path) -> None:
    model = DenseFiles(expert(tmp_path / "law", 1, **SMALL))
    streamed = Streamed(HeadPass(model, head_exponents(model), "float32", "cpu"), 150)
    rows = all_counted(contributed_rows(0))
    streamed.begin([Shard("one", rows, len(rows))])
    assert streamed.save(tmp_path / "window.states", "work")
    assert mode(tmp_path / "window.states") == 0o600


def test_rows_of_a_tuning_are_their_user_s_alone(tmp_path: Path) -> None:
    version = published([expert(tmp_path / "law", 1, **SMALL)], tmp_path)
    wanted = Wanted("dume-plus", {"d0": [str(texts(tmp_path / "d0.jsonl", 1, 40))]}, 64, {}, context=32)
    request = read_version(version, wanted, NoProgress())

    def make(work: Path) -> None:
        write_rows(request, work)
        assert (mode(work.parent), mode(work / ROWS)) == (0o700, 0o600)

    make_once(tmp_path / "tuned", request.record, make)
