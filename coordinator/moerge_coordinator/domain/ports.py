"""Ports of the rules: their access beyond one transaction's rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moerge.blobs.store import Blobs
from moerge_coordinator.domain.contribution_rules import Rule
from moerge_coordinator.domain.uploads import Uploads
from moerge_coordinator.settings import Settings
from moerge_coordinator.storage.database import Database
from moerge_coordinator.storage.folders import Folders


@dataclass(frozen=True)
class Ports:
    """Settings, rows, files and uploads; the rules of contributions by kind, `masked` router contributions apart."""

    settings: Settings
    database: Database
    blobs: Blobs
    folders: Folders
    uploads: Uploads
    rules: Mapping[str, Rule[Any]]
