"""The main road runs without its side rooms: sums, acceptance, solve, versions, a worker's stages, the app."""

import os
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
    "moerge_coordinator.grants",
    "moerge_coordinator.usage",
)
MAIN_ROAD = (
    "contract/test_main_road.py",
    "unit/services/statistics/test_contribution.py",
    "unit/services/routers/test_solve.py",
    "unit/workers/contributing/test_stages.py",
    "unit/coordinator/dashboard/test_attention.py",
    "unit/coordinator/dashboard/test_session.py",
    "unit/coordinator/dashboard/test_site.py",
    "unit/coordinator/domain/test_aliases.py",
    "unit/coordinator/domain/test_contributions.py",
    "unit/coordinator/domain/test_versions.py",
    "unit/coordinator/domain/test_withdrawal.py",
    "unit/coordinator/rest/test_failures.py",
)
TESTS = Path(__file__).parents[1]


def test_the_main_road_runs_without_side_rooms() -> None:
    tests = [str(TESTS / name) for name in MAIN_ROAD]
    environment = {**os.environ, "MOERGE_TEST_HIDDEN": " ".join(ROOMS)}
    environment["PYTHONPATH"] = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "support.hidden", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run([*command, "-x", *tests], capture_output=True, text=True, check=False, env=environment)  # noqa: S603
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "passed" in done.stdout
