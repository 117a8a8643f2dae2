"""A version that is made again from exported inputs."""

from functools import partial
from pathlib import Path

from moerge.errors import MoergeError
from moerge.files import file_sha256
from moerge.progress import Progress
from moerge.versions.file_plan import FilePlan, written
from moerge.versions.folder import write_folder
from moerge.versions.inputs import ExportedVersion, InputsFolder
from moerge.versions.version_plan import plan_version
from moerge_proto.digests import Digest
from moerge_proto.version_signatures import PROVENANCE_FILE, SIGNATURE_FILE


def rebuilt_files(
    folder: InputsFolder, exported: ExportedVersion, out: Path | None, progress: Progress
) -> dict[str, Digest]:
    """Name -> SHA-256 of a version's files, made again as the coordinator made them.

    Args:
        out: a new folder for the files, and for signature and provenance, if they cover the published card; None keeps
            nothing.

    Raises:
        MoergeError: inputs are altered or absent, which it names; or the folder exists.
    """
    if altered := folder.altered(exported, progress):
        todo = "get them again from whoever exported them"
        raise MoergeError(f"altered or absent inputs: {', '.join(altered)}", where=str(folder.root), todo=todo)
    files = plan_version(exported.lineage, folder.inputs(exported)).files
    with progress.track(f"making version {exported.number}", len(files), "files") as tracker:
        if out is None:
            result = dict[str, Digest]()
            for file in files:
                result[file.name] = file.digest()
                tracker.advance(1)
            return result
        signed = {SIGNATURE_FILE: exported.signature, PROVENANCE_FILE: exported.provenance}
        kept = signed if exported.card is None else {}
        bundles = [FilePlan(name, "", partial(written, text.encode()), {}) for name, text in kept.items() if text]
        write_folder([*files, *bundles], out, lambda file: tracker.advance(file not in bundles))
    return {file.name: file_sha256(out / file.name) for file in files}
