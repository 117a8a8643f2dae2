"""A version's inputs in a folder, without a coordinator: whoever has them makes the same version again (law 3)."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from moerge.bodies.merge import DENSE_BODY_FILE, SEED_HEAD_FILE
from moerge.errors import MoergeError
from moerge.files import file_sha256
from moerge.models.dense import has_head, part_names, stored_name
from moerge.models.dense_files import DenseBody, DenseFiles
from moerge.models.expert_folder import small_files
from moerge.models.reader import Checkpoint
from moerge.models.stored import SINGLE
from moerge.models.writer import copies, write_safetensors
from moerge.progress import Progress
from moerge.versions.card import Contributed, ExpertRecord, SeedRecord
from moerge.versions.file_plan import FilePlan, written
from moerge.versions.version_plan import Seed, Slot, VersionInputs
from moerge_proto.digests import Digest
from moerge_proto.messages import Message
from moerge_proto.versions import Lineage


class ExportedVersion(Message):
    """The facts of a version's inputs: the file versions/N.json.

    `files`: path in the folder -> SHA-256. `missing`: the inputs that are not in the folder, each with its reason.
    `signature`: the version's `model.sig`, which has the digests of its files, None if unsigned; `provenance`: its
    `provenance.sigstore.json`, if it has one; `card`: the signed card, if that has facts added after the publication.
    The others are as in `VersionInputs`.
    """

    number: int
    lineage: Lineage
    method: str
    experts: list[ExpertRecord]
    merged: list[ExpertRecord]
    contributed: list[Contributed]
    seed: SeedRecord | None
    files: dict[str, Digest]
    missing: list[str]
    release: str
    signature: str | None
    provenance: str | None = None
    card: str | None = None


def expert_inputs(expert: DenseFiles) -> list[FilePlan]:
    """The files of an expert that a version is made of: MLPs, last norm, head, and small files. No other tensors.

    The names are those of its checkpoint; a tied head is the embedding.
    """
    checkpoint = expert.checkpoint
    plans = copies(checkpoint, dict.fromkeys(stored_name(checkpoint, name) for name in part_names(expert)))
    small = [FilePlan(name, "", partial(written, data), {}) for name, data in small_files(expert).items()]
    return [FilePlan(SINGLE, "", lambda out: write_safetensors(out, plans), {}), *small]


@dataclass(frozen=True)
class InputsFolder:
    """A folder with the inputs of versions, which share bodies, experts and contributions."""

    root: Path

    def record(self, number: int) -> Path:
        return self.root / "versions" / f"{number}.json"

    def body(self, digest: Digest) -> Path:
        return self.root / "bodies" / digest

    def expert(self, digest: Digest) -> Path:
        return self.root / "experts" / digest

    def contribution(self, digest: Digest) -> Path:
        return self.root / "contributions" / digest

    def name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def exported(self, number: int) -> ExportedVersion:
        """The facts of a version.

        Raises:
            MoergeError: the folder has none, or they can't be read, or an input is missing.
        """
        path, todo = self.record(number), "run again where the coordinator is: moerge coordinator inputs"
        try:
            result = ExportedVersion.model_validate_json(path.read_bytes())
        except FileNotFoundError as error:
            raise MoergeError(f"no inputs of version {number}", where=str(path), todo=todo) from error
        except ValueError as error:
            raise MoergeError("not the inputs of a version", where=str(path), todo=todo) from error
        if result.missing:
            raise MoergeError(f"inputs are missing: {'; '.join(result.missing)}", where=str(path), todo=todo)
        return result

    def altered(self, exported: ExportedVersion, progress: Progress) -> list[str]:
        """The inputs that are absent or have other digests: contributions than the lineage's, other files than listed.

        An expert's digest is of its whole checkpoint, which is not here: the version's own files show another one.
        """
        lineage = exported.lineage
        sums = [*lineage.contributions, *lineage.head.contributions]
        expected = exported.files | {self.name(self.contribution(digest)): digest for digest in sums}
        result = []
        with progress.track("verifying inputs", len(expected), "files") as tracker:
            for name, digest in sorted(expected.items()):
                path = self.root / name
                if not path.is_file() or file_sha256(path) != digest:
                    result.append(name)
                tracker.advance(1)
        return result

    def inputs(self, exported: ExportedVersion) -> VersionInputs:
        """The inputs of a version, for `plan_version`.

        Raises:
            MoergeError: a checkpoint can't be read.
        """
        lineage, body = exported.lineage, self.body(exported.lineage.body)
        small, weights = DenseFiles(body), body / DENSE_BODY_FILE
        record = exported.seed
        return VersionInputs(
            slots=[self._slot(record) for record in exported.experts],
            body=DenseBody(weights, small.config),
            body_sha256=exported.files.get(self.name(weights), ""),  # if not listed, it is computed
            method=exported.method,
            merged=exported.merged,
            contributed=exported.contributed,
            statistics=lambda: [self.contribution(digest) for digest in lineage.contributions],
            head_statistics=lambda: [self.contribution(digest) for digest in lineage.head.contributions],
            seed=None if record is None else Seed(*record, small, Checkpoint.of_file(body / SEED_HEAD_FILE)),
        )

    def _slot(self, record: ExpertRecord) -> Slot:
        files = DenseFiles(self.expert(record.digest))
        return Slot(record, files.checkpoint, files, files.checkpoint if has_head(files) else None)
