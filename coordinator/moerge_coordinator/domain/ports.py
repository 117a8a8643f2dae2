"""Ports of the rules: their access beyond one transaction's rows."""

from dataclasses import dataclass
from functools import cached_property

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

from moerge.blobs.store import Blobs
from moerge_coordinator.domain.uploads import Uploads
from moerge_coordinator.settings import Settings
from moerge_coordinator.storage.database import Database
from moerge_coordinator.storage.folders import Folders
from moerge_coordinator.storage.version_key import version_key


@dataclass(frozen=True)
class Ports:
    """Settings, rows, files and uploads."""

    settings: Settings
    database: Database
    blobs: Blobs
    folders: Folders
    uploads: Uploads

    @cached_property
    def version_key(self) -> EllipticCurvePrivateKey:
        """The key that signs versions."""
        return version_key(self.settings.home)
