"""The pages, in the order of the menu. They only read from REST."""

from moerge_coordinator.dashboard.pages import (
    aliases,
    audit,
    comparisons,
    contributions,
    experts,
    owners,
    settings,
    trunks,
    version,
    versions,
    workflows,
)
from moerge_coordinator.dashboard.site import Page

_MODULES = (
    versions, version, comparisons, aliases, experts, owners, contributions, trunks, workflows, audit, settings,
)  # fmt: skip
PAGES: dict[str, Page] = {path: page for module in _MODULES for path, page in module.PAGES.items()}
