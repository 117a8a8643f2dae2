"""The base model's own trunk."""

from moerge.trunk.methods.average import rule
from moerge.trunk.methods.method import elementwise

_BASE = frozenset({"base"})

METHOD = elementwise("base", "one model's own", rule, takes=_BASE, needs=_BASE, base_only=True)
