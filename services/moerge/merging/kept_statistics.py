"""The statistics that a merge has kept beside its output, so that experts can be added."""

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from moerge.bodies.lineage import BodyOptions
from moerge.bodies.merge import MergedBody
from moerge.bodies.methods.registry import METHODS
from moerge.errors import MoergeError
from moerge.files import atomic_file, file_sha256, linked, work_folder
from moerge.merging.assemble import BODY, KeptParts
from moerge.merging.local_lineages import BODY_RECORD, LocalBody, kept_body
from moerge.merging.settings import MergeSettings
from moerge.models.dense import stored_name
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import small_files
from moerge.models.reader import Checkpoint
from moerge.models.writer import copies, write_safetensors
from moerge.versions.card import ExpertRecord
from moerge.versions.version_plan import Slot
from moerge_proto.digests import Digest, Name
from moerge_proto.messages import Message
from moerge_proto.recipes import VersionRecipe
from moerge_proto.records import read_record
from moerge_proto.statistics_file import StatisticsSettings
from moerge_proto.version_files import FUSED_FILE, expert_name
from moerge_proto.versions import Lineage

RECORD, EXPERTS, HEAD_FILE = "kept.json", "experts", "head.safetensors"
CHOICES = "recipe", "statistics", "held_out_share", "rare_below"
"""The settings of a merge that its record keeps."""
_REMEDY = "merge the experts again into a new folder, with `keep_statistics`"


class KeptExpert(Message):
    """An expert of a version; fields are those of `ExpertRecord`. `generated`: its statistics are of such text."""

    digest: Digest
    domain: Name
    owner: str
    license: str
    parts_of: Digest | None = None
    fitted: bool = False
    hub_id: str | None = None
    generated: bool = False

    @property
    def record(self) -> ExpertRecord:
        return ExpertRecord(**{name: getattr(self, name) for name in ExpertRecord._fields})


class Record(Message):
    """The choices of a merge, its experts in slot order, and those in its body."""

    format: Literal[1] = 1
    recipe: VersionRecipe
    statistics: StatisticsSettings
    held_out_share: float
    rare_below: int
    experts: list[KeptExpert]
    merged: list[KeptExpert]


@dataclass(frozen=True)
class KeptVersion:
    """A version whose statistics are kept, with the files of its lineage's contributions.

    Attributes:
        contributions: of routers, by digest.
        heads: of the head, in the order of slots with an own head; none if it isn't solved.
    """

    folder: Path
    record: Record
    lineage: Lineage
    body: LocalBody
    contributions: dict[str, Path]
    heads: list[Path]

    @property
    def slots(self) -> list[Slot]:
        """The version's slots; their MLPs are in its files, and their heads in the work folder."""
        is_fused = self.body.family.host.fused
        folders = [work_folder(self.folder) / EXPERTS / expert.domain for expert in self.record.experts]
        return [
            Slot(
                expert.record,
                Checkpoint(self.folder / (FUSED_FILE if is_fused else expert_name(slot))),
                DenseFiles(folder),
                Checkpoint.of_file(head) if (head := folder / HEAD_FILE).is_file() else None,
            )
            for slot, (expert, folder) in enumerate(zip(self.record.experts, folders, strict=True))
        ]

    @property
    def fused_bytes(self) -> int:
        """Bytes of the file of all MLPs, which a version with more experts writes anew; 0 if each expert has a file."""
        file = self.folder / FUSED_FILE
        return file.stat().st_size if self.body.family.host.fused else 0

    @property
    def parts(self) -> KeptParts:
        """The parts that stay when experts are added."""
        return KeptParts(self.body, self.slots, list(self.contributions.values()), self.heads)

    def settings(self, settings: MergeSettings) -> MergeSettings:
        """These settings, with the version's own where they determine a version."""
        chosen = {name: getattr(self.record, name) for name in CHOICES}
        base = settings.base if METHODS[self.body.method].is_seed else None
        return replace(settings, body=BodyOptions(), base=base, **chosen)


def kept(folder: Path) -> KeptVersion:
    """A version's folder and the statistics beside it, which must be of the same merge."""
    lineage, work, where = read_record(folder), work_folder(folder), str(folder)
    if not isinstance(lineage, Lineage):
        todo = "name the output of moerge merge --keep-statistics"
        raise MoergeError("expected a folder of moerge merge", where=where, todo=todo)
    try:
        record = Record.model_validate_json((work / RECORD).read_bytes())
        merged = MergedBody.model_validate_json((work / BODY / BODY_RECORD).read_bytes())
        files = {file_sha256(path): path for path in _contributions(work)}
    except FileNotFoundError as error:
        problem = f"its statistics were not kept: there is no {error.filename}"
        raise MoergeError(problem, where=where, todo=_REMEDY) from error
    except ValidationError as error:
        raise MoergeError("the statistics beside it can't be read", where=where, todo=_REMEDY) from error
    names = [expert.digest for expert in record.experts], merged.digest
    needed = {*lineage.contributions, *lineage.head.contributions}
    if names != (lineage.experts, lineage.body) or not files.keys() >= needed:
        raise MoergeError("the statistics beside it are of another merge", where=where, todo=_REMEDY)
    body = kept_body(merged, work / BODY, [item.record for item in record.merged])
    routers = {digest: files[digest] for digest in lineage.contributions}
    return KeptVersion(folder, record, lineage, body, routers, [files[digest] for digest in lineage.head.contributions])


def _contributions(work: Path) -> Iterable[Path]:
    return sorted(path for kind in ("router", "head") for path in work.glob(f"{kind}-*.safetensors"))


def keep(work: Path, record: Record, slots: Sequence[Slot]) -> None:
    """Completes a work folder with body and contributions, so that experts can be added to its version.

    Each expert's own head is kept, because that of a version with more experts is made of all heads.
    """
    for slot in slots:
        folder = work / EXPERTS / slot.record.domain
        if (head := slot.head) is not None:
            plans = copies(head, [stored_name(head, name) for name in slot.side_files.family.head_names])
            with atomic_file(folder / HEAD_FILE) as out:
                write_safetensors(out, plans)
        for name, data in small_files(slot.side_files).items():
            with atomic_file(folder / name) as file:
                file.write(data)
    with atomic_file(work / RECORD) as out:
        out.write(record.model_dump_json(indent=1).encode())


def share(version: KeptVersion, work: Path) -> None:
    """Links a version's body and contributions into another work folder; copies them if it is on another disk."""
    source = work_folder(version.folder)
    (work / BODY).mkdir(exist_ok=True)
    for file in (*(source / BODY).iterdir(), *version.contributions.values(), *version.heads):
        path = work / file.relative_to(source)
        path.unlink(missing_ok=True)
        if not linked(file, path):
            shutil.copy(file, path)
