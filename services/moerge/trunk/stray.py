"""How far a trunk strays from an owner's own expert, measured before anything is computed under it."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from torch import Tensor

from moerge.errors import IncompatibleExpertError
from moerge.models.config import read_config
from moerge.models.dense import trunk_names
from moerge.models.families import EMBEDDING, HEAD, family_of
from moerge.models.reader import Checkpoint
from moerge.trunk.context_head import without_context_head
from moerge.trunk.regmean import ModuleGrams
from moerge_proto.statistics_file import StatisticsFile


def require_near(expert: Path, trunk: Path, limit: float, own_grams: Path | None = None) -> float:
    """Requires that no trunk tensor strays from the expert's own by more than `limit` of its norm; returns the most.

    With the owner's own trunk contribution at `own_grams`, linear modules are compared by what they answer on its
    text, ||(W - W_d) x|| by ||W_d x||. Rows that only other experts' vocabularies have are not compared, nor the heads
    of one further group, which may only attend by distance (`moerge.trunk.context_head`).

    Raises:
        IncompatibleExpertError: names the tensor: it is missing, of another shape, not finite or too far.
    """
    config = read_config(expert)
    family, own, merged = family_of(config), Checkpoint(expert), Checkpoint(trunk)
    names = trunk_names(own, family, config.num_hidden_layers)
    if missing := [name for name in names if name not in merged.specs]:
        raise _unlike(missing[0])
    with ExitStack() as stack:
        grams = None
        if own_grams is not None:
            file = stack.enter_context(StatisticsFile(own_grams))
            grams = ModuleGrams(own, file, family, config)
        return _furthest(own, without_context_head(merged, family, config), names, limit, grams)


def _unlike(name: str) -> IncompatibleExpertError:
    todo = "ask the operator to merge a trunk that your expert is in"
    return IncompatibleExpertError("the trunk lacks it, or has another shape", where=name, todo=todo)


def _furthest(
    own: Checkpoint, merged: Callable[[str], Tensor], names: Sequence[str], limit: float, grams: ModuleGrams | None
) -> float:
    furthest = 0.0
    for name in names:
        found, expected = merged(name), own.specs[name].shape
        rows = name in (EMBEDDING, HEAD) and found.shape[0] >= expected[0]
        if found.shape[1:] != expected[1:] or (found.shape[0] != expected[0] and not rows):
            raise _unlike(name)
        before = own.tensor(name).double()
        after = found[: expected[0]].double()
        gram = grams.gram(name) if grams is not None and name in grams else None
        distance = _size(after - before, gram) / max(_size(before, gram), 1e-12)
        if not distance <= limit:
            raise IncompatibleExpertError(
                f"the trunk strays by {distance:.3g} of this tensor's norm; the limit is {limit:g}",
                where=name,
                todo="ask the operator which experts the trunk was merged from, and how; with --trunk-contribution"
                " answers are compared instead of weights; or raise max_stray in worker.toml's [policy]",
            )
        furthest = max(furthest, distance)
    return furthest


def _size(tensor: Tensor, gram: Tensor | None) -> float:
    """The tensor's norm, or, weighed by a gram of inputs, its outputs'."""
    if gram is None:
        return float(tensor.norm())
    return float(((tensor @ gram) * tensor).sum().clamp_min(0).sqrt())
