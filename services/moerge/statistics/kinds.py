"""Kinds of contributions by name, with their texts for pages, commands and owners."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from moerge_proto.statistics_file import BodyManifest, HeadManifest, Kind, RouterManifest, StatisticsFile

M = TypeVar("M", RouterManifest, BodyManifest, HeadManifest)


@dataclass(frozen=True)
class ContributionKind(Generic[M]):
    """A kind of contribution.

    Attributes:
        name: in manifests, requests and rows.
        purpose: in forms and links.
        about: the sums and their use.
        origin: when workers send it.
        withdrawal: the effect of a withdrawal.
        under_body: whether it counts under one body only, with a split and shards.
        sums: the tensors of a manifest in words.
        reveals: sentences on what only this kind reveals.
    """

    name: Kind
    purpose: str
    about: str
    origin: str
    withdrawal: str
    under_body: bool
    sums: Callable[[M], str]
    reveals: Callable[[M, StatisticsFile], Iterator[str]]


def _router_sums(manifest: RouterManifest) -> str:
    hidden = manifest.hidden_size
    return f"{manifest.layers} x (gram {hidden} x {hidden}, cross {hidden})"


def _body_sums(manifest: BodyManifest) -> str:
    sizes = Counter(manifest.grams().values())
    return ", ".join([f"{count} grams {size} x {size}" for size, count in sizes.items()] + ["counts of tokens"])


def _head_sums(manifest: HeadManifest) -> str:
    return f"gram {manifest.hidden_size} x {manifest.hidden_size}"


def _token_counts(manifest: BodyManifest, file: StatisticsFile) -> Iterator[str]:
    shown = int((file.array("token_counts") > 0).sum())
    yield (
        f"the counts of {shown:,} of the {manifest.vocab_size:,} tokens; counts below {manifest.rare_below} are "
        "withheld. The grams tell little of those: in a trial hardly more than the frequencies of similar text"
    )


ROUTER = ContributionKind(
    name="router",
    purpose="for routers",
    about="Sums under a body. The routers of versions are solved from them. An owner with a privacy budget sends "
    "nothing else but weights.",
    origin="Workers contribute once there is a body.",
    withdrawal="Later versions don't contain it; nor, if it is in the sum of a cohort, the others of that cohort. "
    "Versions that were solved with it stay as they are.",
    under_body=True,
    sums=_router_sums,
    reveals=lambda manifest, file: iter(()),
)
BODY = ContributionKind(
    name="body",
    purpose="for merged bodies",
    about="Sums over the inputs of the experts' own attention. Merged bodies are solved from them.",
    origin="Workers send them if body_contribution is set and their owner's policy allows it.",
    withdrawal="Bodies that were solved with it are retired. Merge a new one afterwards.",
    under_body=False,
    sums=_body_sums,
    reveals=_token_counts,
)
HEAD = ContributionKind(
    name="head",
    purpose="for heads",
    about="Sums over the inputs of the experts' own heads. The heads of versions are solved from them.",
    origin="Workers send them if their owner's policy allows it.",
    withdrawal="Later versions' heads don't contain it. Versions that were solved with it stay as they are.",
    under_body=False,
    sums=_head_sums,
    reveals=lambda manifest, file: iter(()),
)
CONTRIBUTIONS: Mapping[str, ContributionKind[Any]] = {kind.name: kind for kind in (ROUTER, BODY, HEAD)}
