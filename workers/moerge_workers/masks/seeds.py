"""The seeds of a masked contribution's masks, in a file beside it, and their seals for its keepers."""

import json
from collections.abc import Sequence
from pathlib import Path

from moerge.errors import MoergeError
from moerge.files import atomic_file
from moerge_proto.masks import MaskedPart, Seals, facts_of, new_seed
from moerge_proto.statistics_file import RouterManifest, StatisticsFile
from moerge_workers.outgoing.owner_key import key_file, read_owner_key


def _file(contribution: Path) -> Path:
    return contribution.with_suffix(".seeds")


def new_seeds(contribution: Path, keepers: Sequence[str]) -> list[bytes]:
    """A new secret seed for each keeper of a contribution that will be written, kept beside it."""
    seeds = {keeper: new_seed() for keeper in keepers}
    with atomic_file(_file(contribution), private=True) as file:
        file.write(json.dumps({keeper: seed.hex() for keeper, seed in seeds.items()}).encode())
    return list(seeds.values())


def seals(home: Path, owners: int, contribution: Path, digest: str) -> Seals | None:
    """The seals of a masked contribution, signed with the owner's key; None: it is not masked.

    `owners`: fewest owners of a sum.

    Raises:
        MoergeError: the owner has no key, or the seeds' file is missing.
    """
    with StatisticsFile(contribution) as file:
        manifest = file.manifest
    if not isinstance(manifest, RouterManifest) or not manifest.is_masked:
        return None
    key = key_file(home, manifest.owner)
    if not key.is_file():
        todo = "make one (moerge worker init), and send its request to the operators of coordinator and keepers"
        raise MoergeError("masks need your key", where=str(key), todo=todo)
    path = _file(contribution)
    if not path.is_file():
        todo = f"restore it from a backup; or remove {contribution}, and the worker computes it again"
        raise MoergeError("not found", where=str(path), todo=todo)
    seeds = {name: bytes.fromhex(seed) for name, seed in json.loads(path.read_bytes()).items()}
    return MaskedPart.signed(read_owner_key(key), owners, seeds, contribution=digest, **facts_of(manifest)).seals
