"""The time of a fit, against the passes that it needs."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from bench import ours
from bench.inputs import Shape, documents, experts
from bench.measure import in_turns, seconds
from bench.registry import Pair, benchmark
from moerge.documents.shards import Shard
from moerge.fits.fitting import PublicText, fit
from moerge.models.batches import batches
from moerge.models.dense_files import DenseFiles
from moerge.models.tokens import Tokens, all_counted
from moerge.statistics.streamed import Streamed
from support.models import on_body
from support.versions import body_file

SHAPE, CONTEXT, BATCH_TOKENS, THREADS = Shape(hidden=576, layers=3, intermediate=1536, vocabulary=4000), 512, 2048, 2
DOCUMENTS, PUBLIC = 16, 8


def shards(rows: Sequence[Tokens], name: str) -> list[Shard]:
    """One per thread."""
    parts = [list(rows[thread::THREADS]) for thread in range(THREADS)]
    return [Shard(f"{name}-{thread}", part, len(part)) for thread, part in enumerate(parts)]


def against_passes(shape: Shape, count: int, public: int) -> list[Pair]:
    """A fit to documents beside public ones; passes of the expert and the seed, and of the body with the new MLPs."""
    torch.set_num_threads(1)
    own, other, seed = experts(shape, 3)
    drawn = all_counted(documents(shape, count + public, CONTEXT).tolist())
    rows, texts = drawn[:count], drawn[count:]
    text = PublicText(DenseFiles(seed), list(batches(texts, BATCH_TOKENS)))
    with TemporaryDirectory() as place:
        expert, body = on_body(own, body_file([own, other], Path(place) / "body"))
        new = replace(ours.router_pass(own), body=body)
        works = [
            (ours.router_pass(own), shards(rows, "own")),
            (ours.router_pass(seed), shards(texts, "public")),
            (new, [*shards(rows, "own"), *shards(texts, "public")]),
        ]
        passes = [(Streamed(work, BATCH_TOKENS, THREADS), window) for work, window in works]
        cut = list(batches(rows, BATCH_TOKENS))

        def fitted() -> float:
            with TemporaryDirectory(dir=place) as folder:
                return seconds(partial(fit, expert, body, cut, Path(folder), public=text, threads=THREADS))

        def passed() -> float:
            return sum(seconds(partial(ours.statistics_pass, *one)) for one in passes)

        return in_turns(fitted, passed)


@benchmark(
    "fit",
    "fit of an expert's MLPs, s",
    "the passes that it needs: of expert, seed, and body with its MLPs",
    "<=",
    3.0,
    f"{SHAPE}, T {CONTEXT}, {DOCUMENTS} documents and {PUBLIC} public ones, float32, {THREADS} threads",
)
def fit_time() -> list[Pair]:
    return against_passes(SHAPE, DOCUMENTS, PUBLIC)
