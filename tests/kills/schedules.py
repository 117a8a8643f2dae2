"""Random schedules of SIGKILL: to the worker with its child processes, to an actor, to a raylet."""

import random
import time
from dataclasses import dataclass
from pathlib import Path

from kills.owner import SHARD_BYTES, Owner, end, kill, log_of, processes, shards_done
from support.processes import ended

VICTIMS = {"worker": "", "actor": "ray::Slot", "raylet": "raylet/raylet"}
_LONGEST_SECONDS = {"worker": 14.0, "actor": 8.0, "raylet": 8.0}  # to a kill, once there is something to kill


@dataclass(frozen=True)
class Played:
    """What happened: `kills`, by their victims, of which those in `struck` hit a process that ran."""

    kills: list[str]
    struck: list[str]
    shards: int


_RAYS_LAST_WORDS = ("Failed to get the system config from raylet", "Failed to register worker to Raylet")


def _ended_by_ray(home: Path) -> bool:
    """Ray ends the process that starts it if the raylet dies before it has come up."""
    return any(words in log_of(home).read_text() for words in _RAYS_LAST_WORDS)


def play(place: Owner, home: Path, seed: int) -> Played:
    """Kills by the seed's schedule, and requires that the undisturbed bytes are sent in the end."""
    drawn = random.Random(seed)  # noqa: S311  # not for secrets
    victims = drawn.choices(list(VICTIMS), k=drawn.randint(1, 3))
    struck: list[str] = []
    slots = drawn.randint(1, 2)
    settings = {"slots": slots, "host_memory": slots * (1, 2, 100)[seed % 3] * SHARD_BYTES}
    worker = place.start(home, **settings)
    try:
        for victim in victims:
            delay = drawn.uniform(0, _LONGEST_SECONDS[victim])
            deadline = time.monotonic() + 300
            while worker.is_alive() and not (victim == "worker" or processes(home, VICTIMS[victim])):
                assert time.monotonic() < deadline, f"no {victim} starts"
                time.sleep(0.05)
            moment = time.monotonic() + delay
            while worker.is_alive() and time.monotonic() < moment:
                time.sleep(0.01)
            if not worker.is_alive():
                break
            if victim == "worker":
                end(worker, home)
                struck.append(victim)
                worker = place.start(home, **settings)
            elif kill(home, VICTIMS[victim]):
                struck.append(victim)
        status = ended(worker, 400)
        if status and _ended_by_ray(home) and "raylet" in struck:
            struck[struck.index("raylet")] = "raylet, and with it the worker"
            worker = place.start(home, **settings)
            status = ended(worker, 400)
        assert status == 0, f"seed {seed}, {victims}: status {status}\n{log_of(home).read_text()[-8000:]}"
    finally:
        end(worker, home)
    shards = place.require_undisturbed(home)
    assert shards == shards_done(home)
    return Played(victims, struck, shards)
