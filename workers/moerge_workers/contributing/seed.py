"""The seed's body: made from the owner's own copy of the seed, and compared with the coordinator's, byte for byte."""

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from moerge.bodies.merge import DENSE_BODY_FILE, SEED_PARTS_FILE, FolderFiles, seed_body, seed_digest
from moerge.documents.pool import pool_texts
from moerge.errors import IncompatibleExpertError, MoergeError
from moerge.files import file_sha256
from moerge.models.bounds import feature_exponents
from moerge.models.config import settings_of
from moerge.models.dense_files import DenseBody, DenseFiles
from moerge.models.expert_folder import DenseExpert, expert_digest, file_digests, require_of_seed
from moerge.progress import Progress
from moerge_proto.bodies import Body
from moerge_proto.progress import Obstacle
from moerge_workers.settings import Settings
from moerge_workers.watching.events import Events

_DIGITS = 16  # of a folder's name
_OTHER_SEED = "name the model and the revision that all experts were trained from, in `seed` and at the coordinator"


class OwnBody(DenseBody):
    """The body of an own copy of the `seed`."""

    def __init__(self, path: Path, seed: DenseFiles) -> None:
        super().__init__(path, seed.config)
        self.seed = seed


@dataclass(frozen=True)
class CheckedBody:
    """The coordinator's body, and the `weights` of the own copy, which are the same."""

    body: Body
    weights: OwnBody


class OtherBodyError(IncompatibleExpertError):
    """The coordinator's body isn't the one that the owner allows and can verify."""


def own_seed(folder: Path | None, source: str | None = None) -> DenseFiles:
    """The owner's own copy in a folder; MoergeError: none is set. `source`: the coordinator's name for the seed."""
    if folder is None:
        named = "" if source is None else f", which the coordinator calls {source}"
        todo = f"set `seed` to the folder or hub id (name/model@revision) of your own copy{named}"
        raise MoergeError(
            "your own copy of the seed isn't set; the body is compared with it", where="`seed`", todo=todo
        )
    return DenseFiles(folder)


def own_body(seed: DenseFiles, folder: Path, progress: Progress) -> OwnBody:
    """The body of an own copy of the seed, in a file below `folder`; made once per copy."""
    place = folder / expert_digest(file_digests(seed))[:_DIGITS]
    if not (place / DENSE_BODY_FILE).is_file():
        seed_body(seed, FolderFiles(place, {SEED_PARTS_FILE}), progress)
    return OwnBody(place / DENSE_BODY_FILE, seed)


def remove_others(body: DenseBody) -> None:
    """Remove the bodies of other seeds beside that of the own copy, made when `seed` named them."""
    place = body.checkpoint.path.parent
    for other in place.parent.iterdir():
        if other != place:
            shutil.rmtree(other)


def require_expert_of_seed(expert: DenseFiles, seed: DenseFiles, texts: Iterable[str] = ()) -> str:
    """Require an expert with the seed's config and tokenizer; result and `texts` are those of `require_of_seed`.

    Raises:
        IncompatibleExpertError: names the fields, or the part of the tokenizer, that differ.
    """
    try:
        return require_of_seed(seed, expert, "the expert", str(seed.folder), chain(pool_texts(), texts))
    except IncompatibleExpertError as error:
        todo = f"{error.todo}; or {_OTHER_SEED}"
        raise IncompatibleExpertError(error.what, where=error.where, todo=todo) from error


def require_same_body(own: DenseBody, body: Body) -> None:
    """Require that the coordinator's body is the own copy's, byte for byte, by digests. Downloads nothing.

    Raises:
        OtherBodyError: says what differs, with both digests.
    """
    _require_same_settings(own, body)
    path, served = own.checkpoint.path, {file.name: file for file in body.files}.get(DENSE_BODY_FILE)
    sha256, found = file_sha256(path), None if served is None else served.sha256
    if served is None or served.sha256 != sha256:
        why = "it is another revision of the seed, or forged"
        if served is not None and served.size != (size := path.stat().st_size):
            why = f"it has {served.size:,} bytes instead of {size:,}, so another number format"
        problem = f"the coordinator's body isn't your seed's: {why}; SHA-256 expected {sha256}, found {found}"
        raise OtherBodyError(problem, where=DENSE_BODY_FILE, todo=_todo(body))
    exponents = feature_exponents(own)
    if body.exponents != exponents:
        problem = f"the coordinator's exponents aren't your seed's: expected {exponents}, found {body.exponents}"
        raise OtherBodyError(problem, where="exponents", todo=_todo(body))
    if body.digest != (digest := seed_digest(sha256, settings_of(own.config), exponents)):
        problem = f"the coordinator's body has another name: expected {digest}, found {body.digest}"
        raise OtherBodyError(problem, where="digest", todo=_todo(body))


def checked_body(settings: Settings, expert: DenseExpert, events: Events, body: Body) -> CheckedBody:
    """The coordinator's body, after the comparison with the own copy of the seed, before any text is read.

    Raises:
        IncompatibleExpertError: the coordinator's body isn't the own seed's.
        MoergeError: `seed` isn't set.
    """
    own = own_seed(settings.seed, body.source)
    try:
        require_expert_of_seed(expert, own)
        events.say(f"comparing body {body.digest[:12]} with your own copy of the seed: {own.folder}")
        weights = own_body(own, settings.home / "seed", events)
        require_same_body(weights, body)
    except IncompatibleExpertError:
        events.hindered(Obstacle.BODY_REFUSED)
        raise
    remove_others(weights)
    events.say(f"body {body.digest[:12]} is your seed's, byte for byte; nothing is downloaded")
    return CheckedBody(body, weights)


def _require_same_settings(own: DenseBody, body: Body) -> None:
    shape = {"model_type": body.family, "hidden_size": body.hidden_size, "num_hidden_layers": body.layers}
    theirs = {**body.config, **shape}
    for name, expected in settings_of(own.config).items():
        if (found := theirs.get(name)) != expected:
            problem = f"the coordinator's seed has another config: {name} is {found}; your seed's is {expected}"
            raise OtherBodyError(problem, where=f"config.json: {name}", todo=_todo(body))


def _todo(body: Body) -> str:
    named = "" if body.source is None else f", called {body.source} there"
    return (
        f"no text was read; ask the operator, another way than through the coordinator, which model and revision the "
        f"seed is{named}; then {_OTHER_SEED}"
    )
