"""Experts and versions as folders of links to blobs."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import select

from moerge.blobs.store import Blobs, show
from moerge.models.config import read_config
from moerge.models.expert_folder import is_weights
from moerge.models.reader import Checkpoint
from moerge_coordinator.storage.database import Database
from moerge_coordinator.storage.tables import ExpertRow, VersionRow
from moerge_proto.messages import FileEntry


@dataclass(frozen=True)
class Folders:
    """Folders below a coordinator's home. Versions have permanent folders only with a local store of blobs."""

    database: Database
    blobs: Blobs
    home: Path

    def sweep(self) -> None:
        """Removes a killed process' leftovers. Call it before making folders."""
        with self.database.reading() as session:
            live = set(map(str, session.scalars(select(VersionRow.number).where(VersionRow.retired.is_(None)))))
        folders = [*(self.home / "experts").glob("*"), *(self.home / "versions").glob("*")]
        for folder in folders:
            if folder.parent.name == "experts" or folder.name not in live:
                shutil.rmtree(folder)

    @property
    def experts(self) -> Path:
        """The folder of experts' folders."""
        return self.home / "experts"

    def expert(self, digest: str) -> Path:
        """The folder of an expert's files under their original names, made on demand; see `show_expert`.

        Raises:
            FileNotFoundError: a file is missing.
        """
        folder = self.experts / digest
        self.show_expert(self.files(digest), folder)
        return folder

    def weights(self, digest: str) -> Checkpoint:
        """The weights of an expert.

        Raises:
            FileNotFoundError: a file is missing.
        """
        return self.opened(self.expert(digest), self.files(digest))

    def show_expert(self, files: Sequence[FileEntry], folder: Path) -> None:
        """Makes `folder` a folder of links to an expert's files; without its weights, if they are in another store."""
        show(self.blobs, [file for file in files if self.blobs.lasting or not is_weights(file.name)], folder)

    def opened(self, folder: Path, files: Sequence[FileEntry]) -> Checkpoint:
        """The weights of an expert whose files `folder` shows, or of an adapter on that expert."""
        sources = {file.name: self.blobs.source(file.sha256) for file in files if is_weights(file.name)}
        return Checkpoint(folder, {name: each for name, each in sources.items() if not isinstance(each, Path)})

    def files(self, digest: str) -> list[FileEntry]:
        """The files of an expert."""
        with self.database.reading() as session:
            return session.scalars(select(ExpertRow.files).where(ExpertRow.digest == digest)).one()

    def reference(self, experts: Sequence[str]) -> Path | None:
        """The folder of the expert that all others must match: the oldest with the longest vocabulary."""
        folders = map(self.expert, experts)
        return max(folders, key=lambda folder: read_config(folder).vocab_size, default=None)

    def show_version(self, number: int, files: Sequence[FileEntry]) -> None:
        """Makes the version's folder; it appears whole."""
        if not self.blobs.lasting:
            return
        target = self._version(number)
        shutil.rmtree(target, ignore_errors=True)  # from a run interrupted before it wrote the row
        show(self.blobs, files, target)

    def drop(self, experts: Sequence[str] = (), versions: Sequence[int] = ()) -> None:
        """Removes the folders; the files stay."""
        for folder in (*(self.experts / digest for digest in experts), *map(self._version, versions)):
            shutil.rmtree(folder, ignore_errors=True)

    def _version(self, number: int) -> Path:
        return self.home / "versions" / str(number)
