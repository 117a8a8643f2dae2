"""The texts of `moerge soup`: documents as token ids, with a digest."""

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from moerge.documents.corpus import Corpus
from moerge.documents.splits import HELD_OUT_SHARE, split_digest, split_of, text_digest
from moerge.progress import Progress


class Texts(NamedTuple):
    """Documents of token ids, and the digest of their digests."""

    digest: str
    documents: Sequence[Sequence[int]]


def read_texts(
    title: str, files: Sequence[str], tokenizer: Path, field: str, progress: Progress, *, held_out: bool = True
) -> Texts:
    """The documents of files.

    Args:
        title: of the progress, and the option in errors.
        tokenizer: folder with it.
        field: field or column with a document's text.
        held_out: leave out the tenth that `moerge table` scores.

    Raises:
        MoergeError: a file can't be read.
    """
    corpus = Corpus(files, tokenizer, text_field=field, option=title)
    digest, documents = sha256(), list[Sequence[int]]()
    with progress.track(f"reading {title}", corpus.size(), "B") as tracker:
        for document in corpus.documents(tracker):
            if held_out and split_of(split_digest(document.text), 0, HELD_OUT_SHARE) == "held-out":
                continue
            digest.update(text_digest(document.text))
            documents.append(corpus.encode(document).ids)
    return Texts(digest.hexdigest(), documents)
