"""Inputs of a training on pooled text: documents, the context of rows, and the build."""

from collections.abc import Sequence
from hashlib import sha256
from importlib.metadata import version as installed
from typing import Literal, NamedTuple, cast

from moerge import __version__
from moerge.documents.corpus import Corpus
from moerge.errors import MoergeError
from moerge.models.dense_files import DenseFiles
from moerge.progress import Progress
from moerge_proto.records import Build

Device = Literal["cpu", "cuda"]
CONTEXT = 512


class Texts(NamedTuple):
    """Documents of token ids, and the digest of their digests."""

    digest: str
    documents: Sequence[Sequence[int]]


def read_texts(corpus: Corpus, title: str, progress: Progress) -> Texts:
    """The documents of a corpus, without the tenth that `moerge table` scores."""
    digest, documents = sha256(), list[Sequence[int]]()
    with progress.track(title, corpus.size(), "B") as tracker:
        for name, split, document in corpus.documents(tracker):
            if split == "held-out":
                continue
            digest.update(name)
            documents.append(corpus.encode(document).ids)
    return Texts(digest.hexdigest(), documents)


def context_of(given: int | None, longest: int, whose: str) -> int:
    """The context of rows, in tokens: the given one, or `CONTEXT`, or the model's longest if that is shorter.

    Raises:
        MoergeError: the given one is too long.
    """
    context = given or min(CONTEXT, longest)
    if context > longest:
        problem = f"expected at most {longest}, {whose} context, found {context}"
        raise MoergeError(problem, where="`context`", todo="give a smaller one")
    return context


def end_of_text(model: DenseFiles) -> int | None:
    """The token after each document, of the tokenizer of a dense checkpoint or an adapter."""
    return cast(int | None, model.tokenizer.eos_token_id)


def build(device: Device) -> Build:
    """The installed software, and the device."""
    torch, transformers = map(installed, ("torch", "transformers"))
    return Build(moerge=__version__, torch=torch, transformers=transformers, device=device)
