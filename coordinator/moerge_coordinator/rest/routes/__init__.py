"""The routes, one module per resource."""

from moerge_coordinator.rest.routes import (
    aliases,
    audit,
    bodies,
    contributions,
    demands,
    experts,
    owners,
    progress,
    public_log,
    tokens,
    uploads,
    version_keys,
    versions,
    workflows,
)

_MODULES = (
    owners, tokens, uploads, experts, bodies, contributions, versions, aliases,
    workflows, progress, demands, audit, public_log, version_keys,
)  # fmt: skip
ROUTERS = tuple(module.router for module in _MODULES)
"""The routes of /v1."""
