"""`python -m simulation [--runs N] [--seed N] [--of process|processes|replicas]`: schedules, until one fails."""

import argparse
import json
import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import stamina
import structlog
from hypothesis import HealthCheck, Phase, given, seed, settings

from moerge.progress import LogProgress
from simulation.check import require_all
from simulation.faults import Faults
from simulation.operations import Operation, Run, faults, schedules, seed_folder
from simulation.world import InProcess, OfProcesses, OfReplicas, World
from support.servers import postgres_server, store_server

KINDS = {"process": ("crash", "crash", "full", "before", "after"), "processes": ("crash",), "replicas": ("crash",)}
LATEST = 60


@contextmanager
def worlds(kind: str, place: Path) -> Iterator[Callable[[Path], World]]:
    """A function that makes a world of that kind in an empty folder."""
    if kind == "process":
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
        stamina.set_testing(True, attempts=10_000)
        faulty, template = Faults(), place / "template"
        token = InProcess.template(template, seed_folder())
        yield lambda folder: InProcess(folder / "home", template, token, faulty)
    elif kind == "processes":
        yield lambda folder: OfProcesses(folder / "home", seed_folder())
    else:
        with postgres_server() as postgres, store_server(place) as store:
            yield lambda folder: OfReplicas(folder, seed_folder(), postgres, store)


def play(world: World, folder: Path, schedule: list[Operation]) -> None:
    """Applies the schedule to a new coordinator, and requires the model's state."""
    run = Run(world, folder)
    world.start()
    try:
        for operation in schedule:
            run.do(operation)
        require_all(run)
    finally:
        world.stop()


def simulate(runs: int, number: int, kind: str) -> dict[str, int]:
    """Plays a number of schedules; a failing one is shrunk and raised. Returns the counts."""
    counted = {"schedules": 0, "operations": 0, "faults": 0}
    place = Path(tempfile.mkdtemp(prefix="moerge-simulation-"))
    stamina.instrumentation.set_on_retry_hooks([])

    with worlds(kind, place) as make, LogProgress().track("simulating", runs, "schedules") as tracker:

        @seed(number)
        @settings(
            max_examples=runs,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate, Phase.shrink),
        )
        @given(schedules(faults(KINDS[kind], LATEST)))
        def one(schedule: list[Operation]) -> None:
            folder = Path(tempfile.mkdtemp(dir=place))
            world = make(folder)
            play(world, folder, schedule)
            counted["schedules"] += 1
            counted["operations"] += len(schedule)
            counted["faults"] += world.struck
            shutil.rmtree(folder)
            tracker.advance(1)

        one()
    shutil.rmtree(place)
    return counted


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m simulation")
    parser.add_argument("--runs", type=int, default=500, help="schedules")
    parser.add_argument("--seed", type=int, default=0, help="which")
    parser.add_argument("--of", choices=list(KINDS), default="process", help="this process, real ones, or two replicas")
    chosen = parser.parse_args()
    begin = time.monotonic()
    result = simulate(chosen.runs, chosen.seed, chosen.of)
    print(json.dumps({**result, "seconds": round(time.monotonic() - begin)}))
