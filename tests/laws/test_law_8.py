"""Law 8: memory is bounded, for any model size and number of contributions."""

import json
import os
import subprocess
import sys
import threading
import tracemalloc
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]
import pytest
import torch
import zstandard
from safetensors.torch import load
from torch import Tensor

from moerge.blobs.s3 import S3, S3Blobs
from moerge.bodies import heads
from moerge.bodies.heads import HeadInputs, head_plan
from moerge.bodies.merge import FolderFiles, seed_body
from moerge.bodies.methods import regmean
from moerge.influence import layer_influence
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import DenseExpert
from moerge.models.reader import Checkpoint
from moerge.models.tokens import all_counted
from moerge.models.writer import StackedPlan, TensorPlan, write_safetensors
from moerge.progress import NoProgress
from moerge.routers.system import ridge_system
from moerge.statistics.accumulate import ShardSums
from moerge.statistics.contribution import head_contribution
from moerge.statistics.journal import Journal
from moerge_proto.digests import sha256_hex
from moerge_proto.statistics_file import StatisticsFile, gram_length
from support import federation as fleet
from support.models import expert, seed_model
from support.processes import coordinator, peak_bytes
from support.servers import settings
from support.statistics import LAYERS, manifest_of, written
from support.versions import ROWS, body_file


class Counted:
    """Counts live tensors."""

    def __init__(self) -> None:
        self.alive = self.most = self.made = 0

    def __call__(self, tensor: Tensor) -> Tensor:
        weakref.finalize(tensor, self._gone)
        self.alive, self.made = self.alive + 1, self.made + 1
        self.most = max(self.most, self.alive)
        return tensor

    def _gone(self) -> None:
        self.alive -= 1


# --- merging and publishing


@pytest.mark.parametrize("fused", [False, True])
def test_law_8_a_file_is_written_with_two_tensors_in_memory(fused: bool) -> None:
    """Of a tensor that has the matrices of all experts, with two of these."""
    counted, out = Counted(), BytesIO()
    plans = [TensorPlan(str(i), torch.float32, (2, 4), lambda: counted(torch.zeros(2, 4))) for i in range(20)]
    write_safetensors(out, [StackedPlan("all", 10, plans)] if fused else plans)
    assert (counted.made, counted.most) == (20, 2)
    shapes = {name: list(tensor.shape) for name, tensor in load(out.getvalue()).items()}
    assert shapes == ({"all": [10, 4, 4]} if fused else {str(i): [2, 4] for i in range(20)})


def test_law_8_merge_reads_one_tensor_per_expert_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experts = [expert(tmp_path / str(seed), seed) for seed in (1, 2, 3)]
    counted, read = Counted(), Checkpoint.tensor
    monkeypatch.setattr(Checkpoint, "tensor", lambda checkpoint, name: counted(read(checkpoint, name)))
    body_file(experts, tmp_path / "body")
    assert counted.made > 8 * len(experts)
    assert counted.most <= len(experts) + 2  # two merged ones, which may be an expert's own


def test_law_8_a_seed_s_body_is_written_with_two_tensors_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed, counted, read = DenseFiles(seed_model(tmp_path / "seed")), Counted(), Checkpoint.tensor

    def matrix(checkpoint: Checkpoint, name: str) -> Tensor:
        tensor = read(checkpoint, name)
        return counted(tensor) if tensor.ndim == 2 else tensor

    monkeypatch.setattr(Checkpoint, "tensor", matrix)
    seed_body(seed, FolderFiles(tmp_path / "body"), NoProgress())
    assert (counted.made, counted.most) == (2 + 3 * 4 + 1 + 3 * 3, 2)


def test_law_8_a_head_is_solved_with_two_grams_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight experts' heads need as many grams as two experts'."""
    read, most = regmean.square, list[int]()
    for count in (2, 8):
        experts = [DenseExpert(f"d{n}", expert(tmp_path / f"{count}-{n}", n + 1)) for n in range(count)]
        sent = [head_contribution(item, all_counted(4 * ROWS), tmp_path / f"{item.domain}-{count}") for item in experts]
        checkpoints = [item.checkpoint for item in experts]
        plan = head_plan("regmean", HeadInputs(checkpoints, lambda sent=sent: sent, None, experts[0], False))  # type: ignore[misc]
        counted = Counted()
        monkeypatch.setattr(heads, "square", lambda *given, counted=counted: counted(read(*given)))
        write_safetensors(BytesIO(), plan)
        assert counted.made >= count
        most.append(counted.most)
    assert most[0] == most[1] <= 2


# --- summing and solving


def test_law_8_journal_layers_are_joined_tensor_by_tensor(tmp_path: Path) -> None:
    layers, hidden = 16, 200
    gram = gram_length(hidden)
    one = np.arange(gram), np.arange(hidden)
    some = manifest_of(ShardSums({"layers.0.cross": one[1]}, 1, 1), 1)
    blank = some.model_copy(update={"layers": layers, "exponents": [16] * layers, "shards": ["0" * 64]})

    def add(name: str) -> None:
        journal = Journal(tmp_path / "whole", blank)
        for layer in range(layers):
            arrays = dict(zip((f"layers.{layer}.gram", f"layers.{layer}.cross"), one, strict=True))
            journal.add(layer, [name], ShardSums(arrays, 5, 2))

    def peak(work: Callable[[], Any]) -> float:
        """In grams of one layer."""
        tracemalloc.start()
        try:
            work()
            return tracemalloc.get_traced_memory()[1] / (8 * gram)
        finally:
            tracemalloc.stop()

    assert peak(lambda: add("1" * 64)) < 2
    assert peak(lambda: add("2" * 64)) < 6  # the file's, the total, and those of the overflow check
    assert peak(lambda: Journal(tmp_path / "whole", blank).join()) < 4
    assert peak(lambda: Journal(tmp_path / "whole", blank).join()) < 4
    with StatisticsFile(tmp_path / "whole") as file:
        assert all((array == 2 * one[place % 2]).all() for place, array in enumerate(file.arrays()))


def test_law_8_solving_a_layer_holds_two_contributions(tmp_path: Path) -> None:
    """Twelve contributions need as much as two."""
    hidden = 200
    arrays = {"gram": np.arange(gram_length(hidden)), "cross": np.arange(hidden)}
    sums = ShardSums({f"layers.{n}.{name}": array for n in range(LAYERS) for name, array in arrays.items()}, 1, 1)
    paths = [written(tmp_path / str(n), manifest_of(sums, 1, first_shard=n), sums) for n in range(12)]

    def peak(count: int) -> int:
        with ExitStack() as stack:
            files = [stack.enter_context(StatisticsFile(path)) for path in paths[:count]]
            tracemalloc.start()
            stack.callback(tracemalloc.stop)
            ridge_system(files, ["law"], 0, torch.ones(hidden))
            return tracemalloc.get_traced_memory()[1]

    assert peak(12) < peak(2) + arrays["gram"].nbytes


def test_law_8_influence_is_measured_with_few_grams_in_memory() -> None:
    """Twelve owners need as many as three."""

    def most(count: int) -> int:
        there: weakref.WeakSet[Tensor] = weakref.WeakSet()
        peak = 0

        def gram_of(slot: int) -> Tensor:
            nonlocal peak
            gram = torch.eye(8, dtype=torch.float64)
            there.add(gram)
            peak = max(peak, len(there))
            return gram

        def solve(gram: Tensor, slots: Sequence[int]) -> Tensor:
            there.add(gram)
            return torch.rand(len(slots), 8, dtype=torch.float64)

        owners = [str(slot) for slot in range(count)]
        cross, whole = torch.ones(8, count, dtype=torch.float64), count * torch.eye(8, dtype=torch.float64)
        layer_influence(gram_of, whole, cross, [9.0] * count, owners, solve)
        return peak

    assert most(12) == most(3) <= 4


# --- reading, receiving and storing


PEAK_OF_READING = """
import resource, sys
from moerge.documents.files import data_files
from moerge.documents.reader import BadLines, as_text, placed
import pyarrow.parquet  # type: ignore[import-untyped]
def characters(path):
    return sum(len(text) for _, text in placed(data_files(path), "text", as_text, BadLines()))
characters(sys.argv[1])  # what is loaded once
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
total = characters(sys.argv[2])
print(total, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


@pytest.mark.parametrize("form", ["jsonl.zst", "json", "parquet", "arrow"])
def test_law_8_reading_documents_takes_no_more_for_more_of_them(tmp_path: Path, form: str) -> None:
    """100 MB of text in one file, in one row group, need at most half of their size more than a small file."""
    sizes = {"small": 1_000, "large": 100_000}
    for name, count in sizes.items():
        path = tmp_path / f"{name}.{form}"
        texts = [f"{number:08d}" * 125 for number in range(count)]
        if form == "parquet":
            table = pa.table({"text": texts})
            pyarrow.parquet.write_table(table, path, row_group_size=count, use_dictionary=False)
        elif form == "arrow":
            with pa.ipc.new_stream(path, pa.schema({"text": pa.string()})) as out:
                out.write_table(pa.table({"text": texts}), max_chunksize=1000)
        elif form == "json":
            path.write_text(json.dumps([{"text": text} for text in texts]))
        else:
            path.write_bytes(zstandard.compress("".join(json.dumps({"text": text}) + "\n" for text in texts).encode()))
    done = subprocess.run(  # noqa: S603  # our own script
        [sys.executable, "-c", PEAK_OF_READING, *(str(tmp_path / f"{name}.{form}") for name in sizes)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    characters, more = map(int, done.stdout.split())
    assert characters == 100_000_000
    assert more < characters / 2


def test_law_8_putting_and_fetching_hold_a_few_parts_in_memory(s3: S3, tmp_path: Path) -> None:
    """Another 200 MB need at most half of their size."""
    piece, sizes = os.urandom(2**20), (100, 300)
    digests = {pieces: sha256_hex(piece * pieces) for pieces in sizes}

    def put(pieces: int) -> None:
        def write(out: BinaryIO) -> str:
            for _ in range(pieces):
                out.write(piece)
            return digests[pieces]

        S3Blobs(s3, tmp_path / "a", 2**40).put("file", write)

    def fetch(pieces: int) -> None:
        S3Blobs(s3, tmp_path / "b", 2**40).local(digests[pieces])

    def peak(work: Callable[[], Any]) -> int:
        """Peak of the whole process' additional bytes, including those outside Python."""
        before, most, done = resident(), 0, threading.Event()

        def watch() -> None:
            nonlocal most
            while not done.wait(0.01):
                most = max(most, resident() - before)

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            work()
        finally:
            done.set()
            watcher.join()
        return most

    for work in (put, fetch):
        small, large = (peak(partial(work, pieces)) for pieces in sizes)
        assert large - small < (sizes[1] - sizes[0]) * len(piece) / 2


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_law_8_further_uploads_take_no_further_memory(s3: S3, tmp_path: Path) -> None:
    """Twice as many again need less than half of their own size, because they reuse the first ones' memory."""
    size, at_once = 24 * 2**20, 12
    with coordinator(tmp_path / "home", settings=settings(None, s3)) as server:
        member = fleet.join(server, "law", tmp_path)

        def upload(number: int) -> None:
            path = tmp_path / str(number)
            path.write_bytes(os.urandom(size))
            with server.client(member.token) as client:
                client.upload(path, fleet.SILENT, title="file")
            path.unlink()

        with ThreadPoolExecutor(at_once) as pool:
            list(pool.map(upload, range(at_once)))
            first = peak_bytes(server)
            list(pool.map(upload, range(at_once, 3 * at_once)))
        member.client.close()
        assert peak_bytes(server) - first < size * at_once
