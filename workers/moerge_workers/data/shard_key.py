"""The key of shard names. It never leaves the machine; without it a name reveals nothing of the shard's text."""

import os
import secrets
from pathlib import Path

from moerge.files import atomic_file


def read_key(home: Path) -> bytes:
    """The key of shard names: 32 random bytes, made on first use and kept with mode 0600."""
    path = home / "key"
    if not path.is_file():
        with atomic_file(path) as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(secrets.token_bytes(32))
    return path.read_bytes()
