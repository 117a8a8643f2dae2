"""Every body method by name, and the check of a request's options."""

from moerge.bodies.lineage import BodyOptions
from moerge.bodies.methods import average, dare, regmean, seed, ties
from moerge.bodies.methods.method import Method
from moerge.errors import MoergeError

METHODS: dict[str, Method] = {
    method.name: method for module in (seed, average, ties, dare, regmean) for method in module.METHODS
}


SOLVED = ", ".join(method.name for method in METHODS.values() if method.solved)
"""The methods that need every owner's body contribution."""


def require_options(method: Method, options: BodyOptions) -> None:
    """Requires the method's required options, and only options that it takes.

    Raises:
        MoergeError: names the first wrong option.
    """
    given = options.model_dump(exclude_defaults=True).keys()
    if superfluous := sorted(given - method.takes):
        takes = f"it takes {', '.join(sorted(method.takes))}" if method.takes else "it takes none"
        problem = f"the method {method.name!r} doesn't take this option"
        raise MoergeError(problem, where=f"`{superfluous[0]}`", todo=f"leave it out; {takes}")
    if missing := sorted(method.needs - given):
        problem = f"the method {method.name!r} needs this option"
        raise MoergeError(problem, where=f"`{missing[0]}`", todo="give it, or choose another method")
