"""Kinds of contributions that leave an owner, by name, with their texts for pages, commands and owners."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from moerge_proto.contributions import Kind
from moerge_proto.statistics_file import HeadManifest, RouterManifest

M = TypeVar("M", RouterManifest, HeadManifest)


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
    """

    name: Kind
    purpose: str
    about: str
    origin: str
    withdrawal: str
    under_body: bool
    sums: Callable[[M], str]


def _router_sums(manifest: RouterManifest) -> str:
    hidden = manifest.hidden_size
    return f"{manifest.layers} x (gram {hidden} x {hidden}, cross {hidden})"


def _head_sums(manifest: HeadManifest) -> str:
    return f"gram {manifest.hidden_size} x {manifest.hidden_size}"


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
)
HEAD = ContributionKind(
    name="head",
    purpose="for heads",
    about="Sums over the inputs of the experts' own heads. The heads of versions are solved from them.",
    origin="Workers send them if their owner's policy allows it.",
    withdrawal="Later versions' heads don't contain it. Versions that were solved with it stay as they are.",
    under_body=False,
    sums=_head_sums,
)
CONTRIBUTIONS: Mapping[str, ContributionKind[Any]] = {kind.name: kind for kind in (ROUTER, HEAD)}
