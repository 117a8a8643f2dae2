"""Small experts and texts for merges on one machine."""

from pathlib import Path
from typing import Any

from moerge.documents.corpus import Corpus
from moerge.files import file_sha256
from moerge.merging.merge import Source
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import DenseExpert

HIDDEN = 16
SMALL: dict[str, Any] = {"hidden_size": HIDDEN, "intermediate_size": 16, "num_hidden_layers": 2}


def corpus_of(folder: Path, domain: str, text: Path | None = None) -> Corpus:
    return Corpus([str(text or folder / f"{domain}.jsonl")], DenseFiles(folder / domain))


def source(folder: Path, domain: str, text: Path | None = None) -> Source:
    return Source(DenseExpert(domain, folder / domain), corpus_of(folder, domain, text))


def files(folder: Path) -> dict[str, str]:
    """Path -> SHA-256."""
    return {str(path.relative_to(folder)): file_sha256(path) for path in folder.rglob("*") if path.is_file()}
