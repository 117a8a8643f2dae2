"""`python -m mutations [--jobs N] [NAME ...]`: all or the named mutations; fails unless tests catch each."""

import argparse
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from mutations.catalogue import MUTATIONS, Mutation
from mutations.play import Outcome, StaleError, copied, place, play


def main() -> None:
    names = [mutation.name for mutation in MUTATIONS]
    parser = argparse.ArgumentParser(prog="python -m mutations", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1, help="mutations at once, each in a separate copy")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"mutations, default all: {', '.join(names)}")
    asked = parser.parse_args()
    if unknown := sorted({*asked.names} - {*names}):
        parser.error(f"no such mutation: {', '.join(unknown)}")
    chosen = [mutation for mutation in MUTATIONS if not asked.names or mutation.name in asked.names]
    try:
        for mutation in chosen:
            place(mutation)
    except StaleError as error:
        sys.exit(f"{error}. Change it in tests/mutations/catalogue.py.")
    begin, caught = time.monotonic(), 0
    with tempfile.TemporaryDirectory(prefix="moerge-mutations-") as folder, ThreadPoolExecutor(asked.jobs) as pool:
        copies = SimpleQueue[Path]()
        for number in range(asked.jobs):
            copies.put(copied(Path(folder) / str(number)))

        def played(mutation: Mutation) -> Outcome:
            copy = copies.get()
            try:
                return play(mutation, copy)
            finally:
                copies.put(copy)

        for mutation, outcome in zip(chosen, pool.map(played, chosen), strict=True):
            print(f"{outcome.result:12}{outcome.seconds:6.0f} s  {mutation.name}: {mutation.subject}", flush=True)
            caught += outcome.result == "caught"
            if outcome.result != "caught":
                print(outcome.output[-2000:], file=sys.stderr)
    print(f"{caught} of {len(chosen)} caught in {time.monotonic() - begin:.0f} s")
    sys.exit(caught != len(chosen))


if __name__ == "__main__":
    main()
