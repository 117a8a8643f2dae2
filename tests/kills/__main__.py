"""`python -m kills [--runs N] [--seed N] [--seconds N]`: random schedules of kills, until one fails."""

import argparse
import json
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch

from kills.owner import owner_of
from kills.schedules import play
from moerge.progress import LogProgress


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m kills", description=__doc__)
    parser.add_argument("--runs", type=int, default=50, help="schedules")
    parser.add_argument("--seed", type=int, default=0, help="of the first; each further one has the next")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no schedule later than this")
    chosen = parser.parse_args()
    torch.set_num_threads(1)  # as actors have; another number gives other integers
    begin, played, struck = time.monotonic(), 0, Counter[str]()
    with (
        tempfile.TemporaryDirectory(prefix="moerge-kills-") as folder,
        owner_of(Path(folder)) as place,
        LogProgress().track("killing", chosen.runs, "schedules") as tracker,
    ):
        for seed in range(chosen.seed, chosen.seed + chosen.runs):
            if time.monotonic() - begin > chosen.seconds:
                break
            struck.update(play(place, Path(folder) / f"worker-{seed}", seed).struck)
            played += 1
            tracker.advance(1)
            print(json.dumps({"seed": seed, "schedules": played, "kills": struck}), flush=True)
    print(json.dumps({"schedules": played, "kills": struck, "seconds": round(time.monotonic() - begin)}))


if __name__ == "__main__":
    main()
