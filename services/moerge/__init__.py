"""moerge: dense expert LLMs of different owners become one Mixture-of-Experts checkpoint (DUME, arXiv 2603.29765).

The pipeline on one machine, without a server; `texts` holds each domain's documents as token ids:

    from pathlib import Path
    from moerge import DenseExpert, all_counted, local_body, local_version, plan_version
    from moerge import body_contribution, head_contribution, router_contribution, write_folder

    work, experts = Path("merged.work"), [DenseExpert(name, Path(name)) for name in ("code", "law")]
    documents = {name: all_counted(rows) for name, rows in texts.items()}
    grams = [body_contribution(item, documents[item.domain], work / f"body-{item.domain}") for item in experts]
    body = local_body(experts, work / "body", "regmean", grams)
    heads = [head_contribution(item, documents[item.domain], work / f"head-{item.domain}") for item in experts]
    sums = [router_contribution(item, body, documents[item.domain], work / item.domain) for item in experts]
    lineage, inputs = local_version(experts, body, sums, head="regmean", head_contributions=heads)
    write_folder(plan_version(lineage, inputs).files, Path("merged"))

`merge` does the same from files of text, in one call, and `moerge merge` is its command. In the service, workers make
the contributions under the seed's body, and the coordinator calls `plan_version` on them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moerge.bodies.merge import merge_body
    from moerge.fits.fitting import fit
    from moerge.merging.local_lineages import local_body, local_version
    from moerge.merging.merge import merge
    from moerge.models.expert_folder import DenseExpert
    from moerge.models.tokens import Tokens, all_counted
    from moerge.statistics.contribution import body_contribution, head_contribution, router_contribution
    from moerge.versions.folder import write_folder
    from moerge.versions.version_plan import plan_version

__version__ = "0.2.0.dev18"
__all__ = [
    "DenseExpert",
    "Tokens",
    "all_counted",
    "body_contribution",
    "fit",
    "head_contribution",
    "local_body",
    "local_version",
    "merge",
    "merge_body",
    "plan_version",
    "router_contribution",
    "write_folder",
]
_HOMES = {
    "DenseExpert": "models.expert_folder",
    "Tokens": "models.tokens",
    "all_counted": "models.tokens",
    "fit": "fits.fitting",
    "local_body": "merging.local_lineages",
    "local_version": "merging.local_lineages",
    "merge": "merging.merge",
    "merge_body": "bodies.merge",
    "plan_version": "versions.version_plan",
    "router_contribution": "statistics.contribution",
    "body_contribution": "statistics.contribution",
    "head_contribution": "statistics.contribution",
    "write_folder": "versions.folder",
}


def __getattr__(name: str) -> Any:
    """Imports a name at its first use, because torch takes seconds (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'moerge' has no attribute {name!r}")
    try:
        home = import_module(f"moerge.{_HOMES[name]}")
    except ModuleNotFoundError as error:
        error.add_note("pip install 'moerge[merge]'")
        raise
    return getattr(home, name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
