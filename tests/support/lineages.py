"""Versions under a seed's body, of small experts and random statistics, with any grouping of shards."""

from collections.abc import Sequence
from functools import cache, reduce
from io import BytesIO
from operator import add
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from hypothesis import strategies as st

from moerge.merging.local_lineages import LocalBody, local_body, local_version
from moerge.models.expert_folder import DenseExpert
from moerge.models.tokens import all_counted
from moerge.statistics.accumulate import ShardSums
from moerge.statistics.contribution import head_contribution
from moerge.versions.version_plan import VersionPlan, plan_version
from moerge_proto.bodies import HeadMethod
from support.models import expert, seed_model
from support.statistics import LAYERS, honest_shards, manifest_of, written
from support.versions import contributed_rows

HIDDEN = 12
SIZES: dict[str, Any] = {
    "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": 2, "num_key_value_heads": 1,
}  # fmt: skip
DOMAINS = ("law", "art", "code")
SHARDS = {domain: honest_shards(HIDDEN, 40 + 7 * seed, 4, HIDDEN, seed) for seed, domain in enumerate(DOMAINS)}
"""Different sizes, so that balanced weights are not powers of two, which multiply floats exactly."""
Group = tuple[str, Sequence[int]]  # a domain, and the shards of one contribution


@cache
def made(family: str = "llama") -> tuple[dict[str, tuple[DenseExpert, Path]], LocalBody]:
    """An expert of each domain with its head contribution, and the body of their seed."""
    home = Path(mkdtemp(prefix="law-3-"))
    experts = {}
    for seed, domain in enumerate(DOMAINS, 1):
        dense = DenseExpert(domain, expert(home / domain, seed, family, **SIZES))
        head = head_contribution(dense, all_counted(3 * contributed_rows(seed)), home / f"{domain}-head")
        experts[domain] = dense, head
    seed_of_all = DenseExpert("seed", seed_model(home / "seed", family=family, **SIZES))
    return experts, local_body([], home / "body", "seed", base=seed_of_all)


def contributed(folder: Path, groups: Sequence[Group]) -> list[Path]:
    """A router contribution of each group."""
    paths = []
    for domain, members in groups:
        sums: ShardSums = reduce(add, [SHARDS[domain][member] for member in members])
        manifest = manifest_of(sums, len(members), domain=domain, first_shard=min(members))
        paths.append(written(folder / f"{domain}-{'-'.join(map(str, sorted(members)))}", manifest, sums))
    return paths


def planned(
    folder: Path,
    groups: Sequence[Group],
    domains: Sequence[str],
    head: HeadMethod = "regmean",
    family: str = "llama",
) -> VersionPlan:
    """The version by the recommended options, from contributions in the groups' order."""
    experts, body = made(family)
    dense, heads = zip(*(experts[domain] for domain in domains), strict=True)
    sent = contributed(folder, groups)
    given = heads if head == "regmean" else ()
    return plan_version(*local_version(dense, body, sent, head=head, head_contributions=given))


def version(folder: Path, groups: Sequence[Group], domains: Sequence[str]) -> dict[str, bytes]:
    """Name -> content of every file of the version."""
    files = {}
    for file in planned(folder, groups, domains).files:
        out = BytesIO()
        file.write(out)
        files[file.name] = out.getvalue()
    return files


def solved(folder: Path, groups: Sequence[Group], domains: Sequence[str]) -> list[bytes]:
    """The bytes that depend on sums: routers, head and report."""
    files = version(folder, groups, domains)
    return [files[name] for name in ("model-router.safetensors", "model-head.safetensors", "moerge-report.json")]


@st.composite
def groupings(draw: st.DrawFn) -> list[Group]:
    """Every domain's shards in any order, grouped into any contributions, in any order."""
    groups: list[Group] = []
    for domain in DOMAINS:
        order = draw(st.permutations(range(4)))
        cuts = sorted(draw(st.sets(st.integers(1, 3))))
        groups += [(domain, order[start:end]) for start, end in zip([0, *cuts], [*cuts, 4], strict=True)]
    return draw(st.permutations(groups))
