"""Merges and publishes in a separate process: `python -m bench.child FOLDER EXPERT... -- STATISTICS...`."""

import sys
from pathlib import Path

from bench import ours


def main() -> None:
    folder, *rest = map(Path, sys.argv[1:])
    end = rest.index(Path("--"))
    experts, statistics = rest[:end], rest[end + 1 :]
    store = ours.Store(folder)
    body = ours.merge(store, experts)
    ours.publish(store, "1", store.blobs.path(body.sha256), experts, statistics)


if __name__ == "__main__":
    main()
