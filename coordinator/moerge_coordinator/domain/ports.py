"""Ports of the rules: their access beyond one transaction's rows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from moerge.blobs.store import Blobs
from moerge.versions.version_plan import VersionInputs
from moerge_coordinator.domain.contribution_kinds import Rule
from moerge_coordinator.domain.uploads import Uploads
from moerge_coordinator.settings import Settings
from moerge_coordinator.storage.database import Database
from moerge_coordinator.storage.folders import Folders
from moerge_coordinator.storage.tables import VersionRow
from moerge_proto.influence import VersionInfluence
from moerge_proto.owners import Identity
from moerge_proto.versions import Lineage

Comparison = Callable[[Session, VersionRow, VersionRow | None, Settings], tuple[list[str], list[str]]]
Comparisons = Sequence[Comparison]
"""Of a version and the champion -> losses of more than the settings allow, which need an override, and warnings."""
CardScores = Sequence[Callable[[Session, VersionRow, str | None], str]]
"""Of a version -> Markdown of its card's scores that an owner may see; for None all."""
Influence = Callable[[Lineage, VersionInputs], VersionInfluence]
"""Of a lineage and its inputs -> the influence of each owner."""


Admission = Callable[[Session, Settings, Identity, VersionRow], None]
"""Requires that a caller may use all experts of a version, or of a part."""


def unmeasured(*of: object) -> VersionInfluence:
    return VersionInfluence(layers=[], domains=[], warnings=[])


def admitted(session: Session, settings: Settings, caller: Identity, version: VersionRow) -> None:
    """Without grants every caller may use every expert."""


@dataclass(frozen=True)
class Ports:
    """Settings, rows, files and uploads; the rules of contributions by kind, `masked` router contributions apart.

    The rest is of side rooms.
    """

    settings: Settings
    database: Database
    blobs: Blobs
    folders: Folders
    uploads: Uploads
    rules: Mapping[str, Rule[Any]]
    comparisons: Comparisons = ()
    card_scores: CardScores = ()
    influence: Influence = unmeasured
    admission: Admission = admitted
