"""The actions, by path. Each asks for confirmation, then makes a REST call with the visitor's token."""

from moerge_coordinator.dashboard.actions import aliases, experts, grants, owners, versions, workflows
from moerge_coordinator.dashboard.forms import Action

_MODULES = (versions, aliases, experts, grants, owners, workflows)
ACTIONS: dict[str, Action] = {path: action for module in _MODULES for path, action in module.ACTIONS.items()}
