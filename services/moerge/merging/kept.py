"""The statistics that a merge has kept beside its output, so that experts can be added."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from moerge.errors import MoergeError
from moerge.files import atomic_file, file_sha256, linked, work_folder
from moerge.merging.assemble import BODY, KeptParts
from moerge.merging.local import BODY_RECORD, LocalBody, kept_body
from moerge.merging.settings import MergeSettings
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import small_files
from moerge.models.reader import Checkpoint
from moerge.trunk.merge import MergedBody
from moerge.versions.card import ExpertRecord
from moerge.versions.file_plans import expert_name
from moerge.versions.plan import Slot
from moerge_proto.bodies import BodyOptions
from moerge_proto.digests import Digest, Name
from moerge_proto.messages import Message
from moerge_proto.options import VersionRecipe
from moerge_proto.records import read_record
from moerge_proto.statistics_file import StatisticsSettings
from moerge_proto.versions import Lineage

RECORD, EXPERTS = "kept.json", "experts"
CHOICES = "recipe", "statistics", "held_out_share", "rare_below"
"""The settings of a merge that its record keeps."""
_REMEDY = "merge the experts again into a new folder, with `keep_statistics`"


class KeptExpert(Message):
    """An expert of a version; fields are those of `ExpertRecord`. `generated`: its statistics are of such text."""

    digest: Digest
    domain: Name
    owner: str
    license: str
    fitted_from: Digest | None = None
    hub_id: str | None = None
    generated: bool = False

    @property
    def record(self) -> ExpertRecord:
        return ExpertRecord(**{name: getattr(self, name) for name in ExpertRecord._fields})

    @property
    def original(self) -> str:
        """The trained expert."""
        return self.fitted_from or self.digest


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
    """A version whose statistics are kept, with the files of its lineage's contributions by digest."""

    folder: Path
    record: Record
    lineage: Lineage
    body: LocalBody
    contributions: dict[str, Path]

    @property
    def slots(self) -> list[Slot]:
        """The version's slots; their MLPs are in its files."""
        work = work_folder(self.folder)
        return [
            Slot(expert.record, Checkpoint(self.folder / expert_name(slot)), DenseFiles(work / EXPERTS / expert.domain))
            for slot, expert in enumerate(self.record.experts)
        ]

    @property
    def parts(self) -> KeptParts:
        """The parts that stay when experts are added."""
        return KeptParts(self.body, self.slots, list(self.contributions.values()))

    def settings(self, settings: MergeSettings) -> MergeSettings:
        """These settings, with the version's own where they determine a version."""
        chosen = {name: getattr(self.record, name) for name in CHOICES}
        return replace(settings, body=BodyOptions(), base=None, **chosen)


def kept(folder: Path) -> KeptVersion:
    """A version's folder and the statistics beside it, which must be of the same merge."""
    lineage, work, where = read_record(folder), work_folder(folder), str(folder)
    if not isinstance(lineage, Lineage):
        todo = "name the output of moerge merge --keep-statistics"
        raise MoergeError("expected a folder of moerge merge", where=where, todo=todo)
    try:
        record = Record.model_validate_json((work / RECORD).read_bytes())
        merged = MergedBody.model_validate_json((work / BODY / BODY_RECORD).read_bytes())
        files = {file_sha256(path): path for path in sorted(work.glob("router-*.safetensors"))}
    except FileNotFoundError as error:
        problem = f"its statistics were not kept: there is no {error.filename}"
        raise MoergeError(problem, where=where, todo=_REMEDY) from error
    except ValidationError as error:
        raise MoergeError("the statistics beside it can't be read", where=where, todo=_REMEDY) from error
    names = [expert.digest for expert in record.experts], merged.digest
    if names != (lineage.experts, lineage.body) or not files.keys() >= set(lineage.contributions):
        raise MoergeError("the statistics beside it are of another merge", where=where, todo=_REMEDY)
    first = DenseFiles(work / EXPERTS / record.experts[0].domain)
    body = kept_body(merged, work / BODY, first, [item.record for item in record.merged])
    return KeptVersion(folder, record, lineage, body, {digest: files[digest] for digest in lineage.contributions})


def keep(work: Path, record: Record, slots: Sequence[Slot]) -> None:
    """Completes a work folder with body and contributions, so that experts can be added to its version."""
    for slot in slots:
        for name, data in small_files(slot.side_files).items():
            with atomic_file(work / EXPERTS / slot.record.domain / name) as out:
                out.write(data)
    with atomic_file(work / RECORD) as out:
        out.write(record.model_dump_json(indent=1).encode())


def share(version: KeptVersion, work: Path) -> None:
    """Links a version's body and contributions into another work folder; copies them if it is on another disk."""
    source = work_folder(version.folder)
    (work / BODY).mkdir(exist_ok=True)
    for file in (*(source / BODY).iterdir(), *version.contributions.values()):
        path = work / file.relative_to(source)
        path.unlink(missing_ok=True)
        if not linked(file, path):
            shutil.copyfile(file, path)
