"""The expert with MLPs fitted to a trunk, made at home from the owner's documents and kept for as long as the trunk."""

import heapq
import os
import shutil
from pathlib import Path

import torch
from rich.filesize import decimal

from moerge.documents.shards import cut, enough
from moerge.errors import MoergeError
from moerge.experts.fitting import fit
from moerge.files import sync_folder
from moerge.models.batches import batches
from moerge.models.config import read_config
from moerge.models.reader import Checkpoint
from moerge.models.tokens import Tokens
from moerge_proto.progress import Stage
from moerge_workers.data import Data
from moerge_workers.memory import free_bytes, is_out_of_memory
from moerge_workers.settings import Settings
from moerge_workers.watch import Watch

TOKENS = 2**16
"""Enough to fit MLPs to; a shard's worth, if that is more."""


def fit_bytes(expert: Path) -> int:
    """Memory that fitting takes at least: both models and three vectors of each token in float32, and a last matrix's
    gram, what is added to it, and its factor in float64.
    """
    config, own = read_config(expert), Checkpoint(expert)
    elements = sum(torch.Size(spec.shape).numel() for spec in own.specs.values())
    vectors = 3 * _most(config.hidden_size) * config.hidden_size
    return int(4 * (2 * elements + vectors) + 8 * 3 * config.intermediate_size**2)


def _most(hidden_size: int) -> int:
    return max(TOKENS, enough(hidden_size))


def fitted(settings: Settings, data: Data, watch: Watch, expert: str, trunk: Path) -> Path | None:
    """The folder of the expert with MLPs fitted to the trunk in a file beside it; made if it isn't there yet.

    `expert` is its digest. None: by the policy there is too little text to fit to, which is said.

    Raises:
        MoergeError: the memory isn't enough.
    """
    folder = trunk.with_name(f"fitted-{expert[:12]}")
    if folder.is_dir():
        return folder
    hidden = read_config(settings.expert).hidden_size
    rows, documents = drawn(settings, data, watch, _most(hidden))
    tokens = sum(row.count for row in rows)
    if (why := settings.policy.too_small(documents, tokens, enough(hidden))) is not None:
        watch.say(f"the MLPs stay as they are: all there is to fit them to is {why}")
        return None
    asked, there = fit_bytes(settings.expert), free_bytes(settings.device)
    if there is not None and asked > there:
        raise _too_large(f"fitting takes {decimal(asked)} of memory, and {decimal(there)} are there")
    total = tokens * read_config(settings.expert).num_hidden_layers
    part = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(part, ignore_errors=True)  # of a worker that was killed
    torch.set_num_threads(settings.slots)
    watch.enter(Stage.COMPUTING)
    with watch.track(f"fitting {settings.domain}'s MLPs to the trunk", total, "tokens") as tracker:
        try:
            cut_up = list(batches(rows, settings.statistics.batch_tokens))
            fit(settings.expert, trunk, cut_up, part, settings.device, tracker.advance)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            raise _too_large("the memory isn't enough to fit the MLPs") from error
    os.replace(part, folder)
    sync_folder(folder.parent)
    return folder


def _too_large(found: str) -> MoergeError:
    return MoergeError(found, where="--fit", todo="choose a larger machine or another --device, or go on without --fit")


def drawn(settings: Settings, data: Data, watch: Watch, most: int) -> tuple[list[Tokens], int]:
    """(rows, documents) of the statistics' split: by lot, so many documents that they hold `most` tokens or are all.

    The lots are the documents' MACs, so the same documents are drawn again, whatever their order.
    """
    kept: list[tuple[int, int, list[Tokens]]] = []  # the last lot first; its tokens, its rows
    lots, tokens = set[int](), 0
    watch.enter(Stage.READING)
    with watch.track("drawing documents to fit to", data.size(), "B") as tracker:
        for mac, split, document in data.documents(tracker):
            lot = -int.from_bytes(mac)
            enough_there = tokens >= most and len(kept) >= settings.policy.min_documents
            if split != "statistics" or lot in lots or (enough_there and lot < kept[0][0]):
                continue
            rows = cut(data.encode(document), settings.statistics)
            if not rows:
                continue
            size = sum(row.count for row in rows)
            heapq.heappush(kept, (lot, size, rows))
            lots.add(lot)
            tokens += size
            while tokens - kept[0][1] >= most and len(kept) > settings.policy.min_documents:
                last, size, _ = heapq.heappop(kept)
                lots.remove(last)
                tokens -= size
    return [row for _, _, rows in sorted(kept, reverse=True) for row in rows], len(kept)
