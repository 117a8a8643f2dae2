"""Ports of the rules: all that they reach beyond the rows of one transaction."""

from dataclasses import dataclass

from moerge.blobs.store import Blobs
from moerge_coordinator.domain.uploads import Uploads
from moerge_coordinator.settings import Settings
from moerge_coordinator.storage.database import Database
from moerge_coordinator.storage.folders import Folders


@dataclass(frozen=True)
class Ports:
    """Settings, rows, files, and the files that owners sent."""

    settings: Settings
    database: Database
    blobs: Blobs
    folders: Folders
    uploads: Uploads
