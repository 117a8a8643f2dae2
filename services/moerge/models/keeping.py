"""The tensors that an expert keeps of its seed: the body, or body and head, as after a training of MLPs alone."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from moerge.models.adapters import Adapter, base_of
from moerge.models.dense import body_names, stored_name
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import file_digests
from moerge.models.families.family import HEAD
from moerge.models.reader import Checkpoint


@dataclass(frozen=True)
class Keeping:
    """The tensors outside the MLPs that differ from the seed's.

    Attributes:
        body: names of those of the body, in order.
        head: names of those of the head.
        rounded: whether all of them are equal in the seed's dtype.
    """

    body: tuple[str, ...] = ()
    head: tuple[str, ...] = ()
    rounded: bool = False

    @property
    def keeps_body(self) -> bool:
        """Tell whether all features behind the seed's body are the expert's own, bit by bit."""
        return not self.body

    @property
    def keeps_head(self) -> bool:
        return not self.head

    @property
    def keeps_all(self) -> bool:
        """Tell whether only MLPs differ, so that no head of its own is needed."""
        return self.keeps_body and self.keeps_head

    def __str__(self) -> str:
        if self.keeps_body:
            return "keeps the seed's body and head" if self.keeps_all else "keeps the seed's body, not its head"
        text = f"has another body than the seed: {len(self.body)} tensors differ, the first is {self.body[0]}"
        todo = "; they are equal in the seed's number format: save the expert in it" if self.rounded else ""
        return f"{text}{todo}"


def keeping(
    expert: DenseFiles,
    seed: DenseFiles,
    advance: Callable[[int], None] = lambda size: None,
    adapter: Path | None = None,
) -> Keeping:
    """The comparison of an expert of a seed with it, in the wider of two dtypes; two tensors in memory at a time.

    Of an adapter on the seed only the tensors that it changes are compared: `adapter` is the folder of a merged one.
    `advance` gets the bytes of each tensor.
    """
    adapter = expert.folder if expert.is_adapter else adapter
    changed = Adapter(adapter).changed if adapter and is_on(adapter, seed) else None
    one, other = expert.checkpoint, seed.checkpoint
    head = [expert.family.final_norm, *([HEAD] if HEAD in one.specs.keys() | other.specs.keys() else [])]
    unlike, rounded = dict[str, list[str]](body=[], head=[]), True
    for part, names in (("body", body_names(seed)), ("head", head)):
        for name in names:
            is_equal, is_rounded = (True, True) if changed and name not in changed else _alike(one, other, name)
            if not is_equal:
                unlike[part].append(name)
                rounded = rounded and is_rounded
            advance(other.specs[stored_name(other, name)].bytes)
    return Keeping(tuple(unlike["body"]), tuple(unlike["head"]), bool(unlike["body"]) and rounded)


def is_on(adapter: Path, seed: DenseFiles) -> bool:
    """Tell whether an adapter's base is this seed: the same folder, or one with equal files."""
    base = DenseFiles(base_of(adapter))
    return base.folder.samefile(seed.folder) or file_digests(base) == file_digests(seed)


def _alike(one: Checkpoint, other: Checkpoint, name: str) -> tuple[bool, bool]:
    """(equal, equal in the second one's dtype) for a tensor; a tied head is the embedding."""
    if any(stored_name(item, name) not in item.specs for item in (one, other)):
        return False, False
    ours, theirs = (item.tensor(stored_name(item, name)) for item in (one, other))
    if ours.shape != theirs.shape:
        return False, False
    wide = torch.promote_types(ours.dtype, theirs.dtype)
    return torch.equal(ours.to(wide), theirs.to(wide)), torch.equal(ours.to(theirs.dtype), theirs)


def all_keep(found: Iterable[Keeping]) -> tuple[bool, bool]:
    """Tell whether all keep the body, and whether all keep body and head."""
    every = list(found)
    return all(item.keeps_body for item in every), all(item.keeps_all for item in every)
