"""The worker's key. It never leaves the machine; shard names under it tell nobody which texts they hold."""

import hmac
import secrets
from pathlib import Path

from moerge.files import atomic_file


def read_key(home: Path) -> bytes:
    """32 random bytes, made on first use and kept with mode 0600."""
    path = home / "key"
    if not path.is_file():
        with atomic_file(path) as file:
            Path(file.name).chmod(0o600)
            file.write(secrets.token_bytes(32))
    return path.read_bytes()


def shard_name(key: bytes, rows: list[list[int]]) -> str:
    """HMAC-SHA-256, in hex, of the shard's token ids; equal documents in equal batches have equal names."""
    mac = hmac.new(key, digestmod="sha256")
    for row in rows:
        mac.update(len(row).to_bytes(8, "little"))
        mac.update(b"".join(token.to_bytes(4, "little", signed=True) for token in row))
    return mac.hexdigest()
