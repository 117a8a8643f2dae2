"""`python -m simulation [--runs N] [--seed N] [--processes]`: random schedules, until one fails."""

import argparse
import json
import logging
import shutil
import tempfile
import time
from pathlib import Path

import stamina
import structlog
from hypothesis import HealthCheck, Phase, given, seed, settings

from moerge.progress import LogProgress
from simulation.check import require_all
from simulation.faults import Faults
from simulation.operations import Operation, Run, faults, schedules
from simulation.world import InProcess, OfProcesses, World

IN_PROCESS = faults(("crash", "crash", "full", "before", "after"), 60)
OF_PROCESSES = faults(("crash",), 60)


def play(world: World, folder: Path, schedule: list[Operation]) -> None:
    """Applies the schedule to a coordinator that is made for it, and requires that all is as the model says."""
    run = Run(world, folder)
    world.start()
    try:
        for operation in schedule:
            run.do(operation)
        require_all(run)
    finally:
        world.stop()


def simulate(runs: int, number: int, *, processes: bool) -> dict[str, int]:
    """Plays that many schedules; a failure is shrunk to a small one and raised. Returns what was counted."""
    counted = {"schedules": 0, "operations": 0, "faults": 0}
    place = Path(tempfile.mkdtemp(prefix="moerge-simulation-"))
    faulty = Faults()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    stamina.instrumentation.set_on_retry_hooks([])
    stamina.set_testing(not processes, attempts=10_000)
    token = InProcess.template(place / "template")
    fault = OF_PROCESSES if processes else IN_PROCESS

    with LogProgress().track("simulating", runs, "schedules") as tracker:

        @seed(number)
        @settings(
            max_examples=runs,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate, Phase.shrink),
        )
        @given(schedules(fault))
        def one(schedule: list[Operation]) -> None:
            folder = Path(tempfile.mkdtemp(dir=place))
            world = (
                OfProcesses(folder / "home")
                if processes
                else InProcess(folder / "home", place / "template", token, faulty)
            )
            before = faulty.hits
            play(world, folder, schedule)
            counted["schedules"] += 1
            counted["operations"] += len(schedule)
            counted["faults"] += world.kills if isinstance(world, OfProcesses) else faulty.hits - before
            shutil.rmtree(folder)
            tracker.advance(1)

        one()
    shutil.rmtree(place)
    return counted


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m simulation")
    parser.add_argument("--runs", type=int, default=500, help="schedules")
    parser.add_argument("--seed", type=int, default=0, help="which")
    parser.add_argument("--processes", action="store_true", help="real processes and SIGKILL")
    chosen = parser.parse_args()
    begin = time.monotonic()
    result = simulate(chosen.runs, chosen.seed, processes=chosen.processes)
    print(json.dumps({**result, "seconds": round(time.monotonic() - begin)}))
