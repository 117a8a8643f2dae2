"""Masked contributions against plain ones, from sums to their total. MASKED_LAYERS=128 takes files of 2 GB."""

import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import numpy as np

from bench.measure import in_turns, seconds
from bench.registry import HOME, Pair, benchmark
from moerge.blobs.local import LocalBlobs
from moerge.client.uploads import compressed, plain_chunks
from moerge.files import atomic_file, file_sha256
from moerge.masks.files import write_sum
from moerge_proto.masks import MasksRequest, MaskSums, summed
from moerge_proto.statistics_file import (
    Int64,
    RouterManifest,
    StatisticsFile,
    StatisticsSettings,
    Sums,
    gram_length,
    write,
)
from support.masked import MaskedOwner, keeper_of

HIDDEN, LAYERS, OWNERS = 2048, int(os.environ.get("MASKED_LAYERS", "4")), 3


class Round:
    """Owners, a keeper and a coordinator's blobs, in a new folder."""

    def __init__(self, folder: Path, hidden: int, layers: int) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        self.folder, self.hidden, self.layers = folder, hidden, layers
        self.owners = [MaskedOwner(f"d{number}") for number in range(OWNERS)]
        self.keeper = keeper_of(folder / "keeper", self.owners)
        self.blobs, drawn = LocalBlobs(folder / "blobs"), np.random.default_rng(0)
        self._arrays = {
            length: np.rint(2.0**36 * drawn.normal(size=length)).astype(np.int64)
            for length in (hidden, gram_length(hidden))
        }

    def run(self, *keepers: str) -> Int64:
        """The sum of the last layer's grams at the coordinator, after all others, with masks for these keepers."""
        body, parts = os.urandom(32).hex(), []  # a keeper answers once under a body
        with ExitStack() as stack:
            files = []
            for owner in self.owners:
                path = self.folder / owner.domain
                self._write(path, owner, body, list(keepers))
                if keepers:
                    parts.append(owner.masked(path, masked := path.with_suffix(".masked")))
                    path.unlink()
                    path = masked
                files.append(stack.enter_context(StatisticsFile(self._sent(path, bytes if keepers else compressed))))
            masks = []
            if keepers:
                request, answer = MasksRequest(parts=parts), self.folder / "answer"
                with answer.open("wb") as out:
                    out.writelines(summed(request, keepers[0], self.keeper.seeds(request)))
                masks.append(stack.enter_context(MaskSums(answer, self.hidden, self.layers, request.domains)))
            summed_files = list[Sums](files)
            if keepers:
                named = {file.name: file for file in files}
                total = self.blobs.local(self.blobs.put("sum", lambda out: write_sum(out, named, masks)).sha256)
                summed_files = [stack.enter_context(Sums(total))]
            for layer in range(self.layers):
                gram: Int64 = sum((file.gram(layer) for file in summed_files), np.zeros(1, np.int64))
                for owner in self.owners:
                    sum(file.cross(layer, owner.domain) for file in summed_files if owner.domain in file.domains)
            for file in (*files, *summed_files):
                self.blobs.delete(file.name)
            return gram

    def _write(self, path: Path, owner: MaskedOwner, body: str, keepers: list[str]) -> None:
        manifest = RouterManifest(
            owner=owner.name, expert="1" * 64, domain=owner.domain, body=body, keepers=keepers,
            settings=StatisticsSettings(), hidden_size=self.hidden, layers=self.layers, exponents=[16] * self.layers,
            tokens=1, documents=1, shards=["2" * 64],
        )  # fmt: skip
        with atomic_file(path) as out:
            write(out, manifest, (self._arrays[length] for _, length in manifest.layout()))

    def _sent(self, path: Path, encode: Callable[[bytes], bytes]) -> Path:
        """The blob of a file, which is removed; its chunks are encoded as the worker's."""
        digest = file_sha256(path)
        for _, chunk in plain_chunks(path):
            encode(chunk)

        def copy(out: BinaryIO) -> str:
            with path.open("rb") as file:
                shutil.copyfileobj(file, out, 2**20)
            return digest

        self.blobs.put(path.name, copy)
        path.unlink()
        return self.blobs.local(digest)


@benchmark(
    "masks",
    f"masked contributions of {OWNERS} owners, from sums to their total, s",
    "plain ones",
    "<=",
    2.0,
    f"H {HIDDEN}, L {LAYERS}, {OWNERS} files of {8 * LAYERS * gram_length(HIDDEN) / 1e6:.0f} MB, one keeper",
)
def masks() -> list[Pair]:
    made = Round(HOME / "masks", HIDDEN, LAYERS)
    keeper = made.keeper.public_key
    return in_turns(lambda: seconds(lambda: made.run(keeper)), lambda: seconds(made.run), 5)
