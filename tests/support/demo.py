"""`moerge demo` as tests run it."""

from pathlib import Path

from support.processes import MOERGE

DEMO = [*MOERGE, "demo", "--home"]
CACHE = Path(__file__).parents[2] / "build" / "test-cache"
"""Trained experts; a run that finds them is a second run."""
