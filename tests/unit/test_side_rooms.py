"""The main road runs without its side rooms: sums, acceptance, solve, versions, a worker's stages, the app."""

import subprocess
import sys
from pathlib import Path

ROOMS = (
    "moerge.noise",
    "moerge.masks",
    "moerge.influence",
    "moerge_workers.noise",
    "moerge_workers.masks",
    "moerge_coordinator.masks",
    "moerge_coordinator.evaluations",
    "moerge_coordinator.influence",
    "moerge_coordinator.webhooks",
    "moerge_coordinator.people",
)
MAIN_ROAD = (
    "services/statistics/test_contribution.py",
    "services/routers/test_solve.py",
    "workers/contributing/test_stages.py",
    "coordinator/dashboard/test_attention.py",
    "coordinator/dashboard/test_session.py",
    "coordinator/dashboard/test_site.py",
    "coordinator/domain/test_aliases.py",
    "coordinator/domain/test_contributions.py",
    "coordinator/domain/test_versions.py",
    "coordinator/domain/test_withdrawal.py",
    "coordinator/rest/test_failures.py",
)
WITHOUT = f"""
import sys
from types import SimpleNamespace

import pytest


class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.startswith({ROOMS!r}):
            raise ModuleNotFoundError(name)


sys.meta_path.insert(0, Missing())
sys.modules["moerge_coordinator.sides"] = SimpleNamespace(COMMANDS=(), sides=list)
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-x", *sys.argv[1:]]))
"""


def test_the_main_road_runs_without_side_rooms() -> None:
    tests = [str(Path(__file__).parent / name) for name in MAIN_ROAD]
    done = subprocess.run([sys.executable, "-c", WITHOUT, *tests], capture_output=True, text=True)  # noqa: S603
    assert done.returncode == 0, done.stdout[-4000:]
    assert "passed" in done.stdout
