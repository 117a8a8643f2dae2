"""The pages, in the order of the menu. They only read from REST."""

from moerge_coordinator.dashboard.pages import comparisons, grants, lists, version, versions
from moerge_coordinator.dashboard.site import Page

PAGES: dict[str, Page] = versions.PAGES | version.PAGES | comparisons.PAGES | lists.PAGES | grants.PAGES
