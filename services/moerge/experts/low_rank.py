"""Experts of low rank: every MLP matrix is the base's plus a low-rank part of its difference from the base.

That part is the truncated singular value decomposition, the nearest matrix of its rank (Eckart and Young 1936). It is
computed in float64 on one thread, and the sum is rounded once. A matrix whose factors would have as many numbers as it
has itself stays as it is.
"""

import json
import os
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from moerge.files import atomic_file, sync_folder
from moerge.models.expert_folder import DenseExpert, check_expert, small_files
from moerge.models.low_rank import FIELD, LowRank
from moerge.models.stored import SINGLE
from moerge.models.writer import TensorPlan, write_safetensors
from moerge.progress import Progress
from moerge.threads import one_thread
from moerge_proto.digests import digest_of
from moerge_proto.experts import Rank

KEPT = 0.9
"""Share of the squared Frobenius norm of the difference that `auto` keeps."""


_DIGITS = 16


class Difference(NamedTuple):
    """A matrix's difference from the base's, [m, n] float64 with m <= n, or its transpose.

    Attributes:
        matrix: the difference.
        vectors: its left singular vectors, [m, m]; the first has the largest singular value.
        energies: the squares of the singular values, [m], in that order.
    """

    matrix: Tensor
    vectors: Tensor
    energies: Tensor

    @classmethod
    def of(cls, base: Tensor, own: Tensor) -> "Difference":
        matrix = own.double() - base.double()
        wide = matrix if len(matrix) <= matrix.shape[1] else matrix.T
        energies, vectors = torch.linalg.eigh(wide @ wide.T)  # ascending
        return cls(wide, vectors.flip(1), energies.flip(0).clamp(min=0))

    def rank(self, asked: Rank) -> int:
        """The rank asked for, or for `auto` the smallest that keeps the share KEPT."""
        if asked != "auto":
            return min(asked, len(self.energies))
        kept, total = self.energies.cumsum(0), self.energies.sum()
        return int((kept < KEPT * total).sum()) + int(total > 0)

    def part(self, rank: int) -> Tensor:
        """The nearest matrix of this rank, [m, n]."""
        first = self.vectors[:, :rank]
        return first @ (first.T @ self.matrix)


class Reduced(NamedTuple):
    """A matrix of low rank, in its dtype, and its rank; None: it stays as it is."""

    matrix: Tensor
    rank: int | None


def reduced(base: Tensor, own: Tensor, asked: Rank) -> Reduced:
    """The base's matrix plus the low-rank part of the difference; all are [out, in]."""
    with one_thread():
        found = Difference.of(base, own)
        rank = found.rank(asked)
        if rank * sum(own.shape) >= own.numel():
            return Reduced(own, None)
        part = found.part(rank)
        return Reduced(((part if part.shape == own.shape else part.T) + base.double()).to(own.dtype), rank)


def low_rank_expert(own: DenseExpert, base: DenseExpert, rank: Rank, home: Path, progress: Progress) -> DenseExpert:
    """The expert of low rank, in a folder of its own below `home`; an existing one is reused.

    It is a complete dense checkpoint; config.json has its record, `LowRank`. In memory are two matrices of the MLPs and
    the decomposition of their difference. The domain's other folders of this kind are removed.

    Raises:
        CheckpointError, IncompatibleExpertError: the base is no model of the expert's architecture and tokenizer.
    """
    check_expert(base.folder, own.folder, f"base {base.folder}", "pad")
    name = digest_of({"expert": own.digest, "base": base.digest, "rank": rank, "kept": str(KEPT)})
    folder = home / f"low-rank-{own.domain}-{name[:_DIGITS]}"
    for other in home.glob(f"low-rank-{own.domain}-{'?' * _DIGITS}"):
        if other != folder:
            shutil.rmtree(other)
    if not folder.is_dir():
        part = home / f".{folder.name}.part"
        shutil.rmtree(part, ignore_errors=True)  # of a killed run
        _write(own, base, rank, part, progress)
        os.replace(part, folder)
        sync_folder(home)
    return replace(own, folder=folder, whole=own)


def _write(own: DenseExpert, base: DenseExpert, rank: Rank, folder: Path, progress: Progress) -> None:
    mlp = set(own.family.dense_mlp_names(own.config.num_hidden_layers))
    ranks = dict[str, int | None]()

    def compute(name: str) -> Tensor:
        made = reduced(base.checkpoint.tensor(name), own.checkpoint.tensor(name), rank)
        ranks[name] = made.rank
        return made.matrix

    specs = own.checkpoint.specs
    plans = [
        TensorPlan(name, at.dtype, at.shape, partial(compute if name in mlp else own.checkpoint.tensor, name))
        for name, at in sorted(specs.items())
    ]
    total = sum(plan.bytes for plan in plans)
    title = f"reducing MLPs of {own.domain} to rank {rank}"
    with progress.track(title, total, "B") as tracker, atomic_file(folder / SINGLE) as out:
        weights = write_safetensors(out, plans, tracker.advance)
    found = {name: each for name, each in ranks.items() if each is not None}
    record = LowRank(
        rank=rank,
        base=base.digest,
        expert=own.digest,
        weights=weights,
        least=min(found.values(), default=0),
        most=max(found.values(), default=0),
        unchanged=len(ranks) - len(found),
        numbers=sum(_numbers(specs[name].shape, each) for name, each in ranks.items()),
        whole=sum(_numbers(specs[name].shape, None) for name in ranks),
    )
    content = small_files(own.folder)
    fields = {**json.loads(content["config.json"]), FIELD: record.model_dump(mode="json")}
    content["config.json"] = (json.dumps(fields, indent=2) + "\n").encode()
    for each, data in content.items():
        with atomic_file(folder / each) as out:
            out.write(data)


def _numbers(shape: tuple[int, ...], rank: int | None) -> int:
    """Numbers of a matrix's factors, or without a rank of the matrix."""
    return torch.Size(shape).numel() if rank is None else rank * sum(shape)
