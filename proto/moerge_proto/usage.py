"""The use of a version's experts, as a consumer reports it: rounded shares, and nothing else."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated

from pydantic import AfterValidator, Field

from moerge_proto.digests import Name
from moerge_proto.messages import Message
from moerge_proto.version_names import VersionName

DIGITS = 3
"""Decimal digits of a reported share: an exact one is a fraction, whose denominator tells the number of tokens."""


def _rounded(value: float) -> float:
    return round(value, DIGITS)


Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False), AfterValidator(_rounded)]
"""From 0 to 1."""


class ExpertShares(Message):
    """An expert's shares of a consumer's tokens and of the routers' weights, means over the layers.

    `tokens_error` and `weight_error` are standard errors over documents; None: unknown.
    """

    tokens: Share
    tokens_error: Share | None = None
    weight: Share
    weight_error: Share | None = None


Shares = Annotated[dict[Name, ExpertShares], Field(min_length=1, max_length=10_000)]


def _at_most_all(shares: Mapping[str, ExpertShares]) -> Mapping[str, ExpertShares]:
    most = 1 + len(shares) / 2 * 10**-DIGITS
    for kind in ("tokens", "weight"):
        if (total := sum(getattr(item, kind) for item in shares.values())) > most + 1e-9:
            raise ValueError(f"the experts' shares of {kind} sum to {total:.3f}; expected at most 1")
    return shares


class NewUsage(Message):
    """A consumer's report about a version: domain -> its expert's shares."""

    experts: Annotated[Shares, AfterValidator(_at_most_all)]


class Usage(Message):
    """A reported expert's shares. `reader`: the name of the reporter's token or sign-in; None: it has none."""

    number: int
    version: VersionName
    domain: Name
    reader: Name | None
    shares: ExpertShares
    created: datetime


def percent(share: float, error: float | None) -> str:
    """A share in percent with its standard error, without the sign."""
    return f"{100 * share:.1f}" + ("" if error is None else f" ± {100 * error:.1f}")
