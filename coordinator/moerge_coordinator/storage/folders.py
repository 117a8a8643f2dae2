"""Experts and versions as folders of links to blobs."""

import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import select

from moerge.blobs.store import Blobs, show
from moerge.bodies.merge import DENSE_BODY_FILE, SEED_HEAD_FILE
from moerge.models.adapters import file_of
from moerge.models.dense_files import DenseBody, DenseFiles
from moerge.models.expert_folder import is_weights
from moerge.models.published import PublishedWeights, published_weights
from moerge.models.reader import Checkpoint
from moerge.versions.version_plan import Seed
from moerge_coordinator.storage.database import Database
from moerge_coordinator.storage.tables import BodyRow, ExpertRow, VersionRow
from moerge_proto.messages import FileEntry
from moerge_proto.ranges import Source


class StoredFiles(DenseFiles):
    """A dense checkpoint whose weights are blobs, in the folder or in another store."""

    def __init__(self, folder: Path, files: Sequence[FileEntry], blobs: Blobs) -> None:
        super().__init__(folder)
        self._files, self._blobs = files, blobs

    def below(self, adapter: Path) -> "StoredFiles":
        """An adapter's folder whose base this is; the base's config needs no weights, which may be in another store."""
        result = StoredFiles(adapter, self._files, self._blobs)
        result.config = self.config
        return result

    def stored(self) -> Checkpoint:
        sources = {file.name: self._blobs.source(file.sha256) for file in self._files if is_weights(file.name)}
        remote = {name: source for name, source in sources.items() if not isinstance(source, Path)}
        return Checkpoint(self.folder, remote)

    def side_file(self, name: str) -> Path:
        """The path of a small file; it may be a link to the store's cache."""
        return file_of(self.folder, name)


@dataclass(frozen=True)
class Folders:
    """Folders below a coordinator's home. Versions have permanent folders only with a local store of blobs."""

    database: Database
    blobs: Blobs
    home: Path

    def sweep(self) -> None:
        """Removes a killed process' leftovers. Call it before making folders."""
        with self.database.reading() as session:
            live = {row.name for row in session.scalars(select(VersionRow).where(VersionRow.retired.is_(None)))}
        folders = [*(self.home / "experts").glob("*"), *(self.home / "versions").glob("*")]
        for folder in folders:
            if folder.parent.name == "experts" or folder.name not in live:
                shutil.rmtree(folder)

    @property
    def experts(self) -> Path:
        return self.home / "experts"

    def expert(self, digest: str) -> StoredFiles:
        """An expert, in a folder of its files under their original names, made on demand; see `shown`."""
        return self.shown(self.files(digest), self.experts / digest)

    def shown(self, files: Sequence[FileEntry], folder: Path) -> StoredFiles:
        """An expert's files, as links in `folder`; without its weights, if they are in another store."""
        show(self.blobs, [file for file in files if self.blobs.lasting or not is_weights(file.name)], folder)
        return StoredFiles(folder, files, self.blobs)

    def body(self, row: BodyRow) -> DenseBody:
        """A body; see `_small`."""
        return DenseBody(self._weights(row, DENSE_BODY_FILE), self._small(row).config)

    def seed(self, row: BodyRow) -> Seed:
        """The seed of a body; see `_small`."""
        head = Checkpoint.of_file(self._weights(row, SEED_HEAD_FILE))
        return Seed(row.source, row.license, self._small(row), head)

    def _small(self, row: BodyRow) -> StoredFiles:
        """A body's config, and a seed's tokenizer, in a folder made on demand."""
        return self.shown([file for file in row.files if not is_weights(file.name)], self.experts / row.digest)

    def _weights(self, row: BodyRow, name: str) -> Source:
        return self.blobs.source({file.name: file.sha256 for file in row.files}[name])

    def published(self, files: Sequence[FileEntry], folder: Path) -> PublishedWeights:
        """A version's weights; its files are shown in `folder` as `shown` does."""
        return published_weights(folder, self.shown(files, folder).stored())

    def files(self, digest: str) -> list[FileEntry]:
        with self.database.reading() as session:
            return session.scalars(select(ExpertRow.files).where(ExpertRow.digest == digest)).one()

    def show_version(self, name: str, files: Sequence[FileEntry]) -> None:
        """Makes the version's folder; it appears whole."""
        if not self._has_folder(name):
            return
        target = self._version(name)
        shutil.rmtree(target, ignore_errors=True)  # from a run interrupted before it wrote the row
        show(self.blobs, files, target)

    def replace_in_version(self, name: str, files: Sequence[FileEntry]) -> None:
        """Replaces or adds these files in the version's folder, one by one."""
        if not self._has_folder(name):
            return
        for file in files:
            target = self._version(name) / file.name
            temporary = target.with_name(f".{file.name}.{secrets.token_hex(4)}.tmp")
            self.blobs.link(file.sha256, temporary)
            temporary.replace(target)
            temporary.unlink(missing_ok=True)  # if the target was the same link

    def drop(self, experts: Sequence[str] = (), versions: Sequence[str] = ()) -> None:
        """Removes the folders; the files stay."""
        for folder in (*(self.experts / digest for digest in experts), *map(self._version, versions)):
            shutil.rmtree(folder, ignore_errors=True)

    def _has_folder(self, name: str) -> bool:
        """Tell whether a version has a folder: parts have none, because not all of their files are blobs."""
        return self.blobs.lasting and "+" not in name

    def _version(self, name: str) -> Path:
        return self.home / "versions" / name
