"""The publication of a pulled version on the hub, huggingface.co, by its own library."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, ModelCard, constants
from huggingface_hub.errors import (  # type: ignore[attr-defined]  # HTTPError is of the HTTP library that it uses
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from huggingface_hub.hf_api import ModelInfo
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from moerge.client.signatures import folder_provenance, verify_folder
from moerge.errors import MoergeError
from moerge.models.sources import require_hub
from moerge.progress import Progress
from moerge_proto.version_files import CARD_FILE, foreign_names
from moerge_proto.version_signatures import PROVENANCE_FILE, SIGNATURE_FILE, UNSIGNED, SignedVersion

_LOGIN = "log in with `hf auth login`, or set HF_TOKEN, with a token that may write to this repository"
_AGAIN = "run the command again; finished uploads are not sent again"


@dataclass(frozen=True)
class Pushed:
    """A version on the hub, or one that is ready for it.

    Attributes:
        files: name -> bytes of the uploaded files.
        commit: None of a dry run.
        unchecked: why the hub has not checked the card; only in a dry run.
    """

    version: int
    files: dict[str, int]
    commit: str | None = None
    unchecked: str | None = None


def push(
    folder: Path,
    repository: str,
    results: Sequence[str],
    progress: Progress,
    *,
    key: str | None,
    public: bool,
    dry_run: bool,
) -> Pushed:
    """Uploads a version's folder into a repository of the hub, in one commit, and returns what was uploaded.

    A new repository is private, unless `public`. Files of an earlier version, which this one lacks, are removed there.
    The token is that of huggingface_hub: its login, or HF_TOKEN.

    Args:
        results: names in the folder of results of public benchmarks, which are uploaded too.
        key: of the signature, as in `verify_folder`.
        public: everybody may see the repository, also an existing private one.
        dry_run: checks all that needs no token, and sends the model card only.

    Raises:
        MoergeError: the folder is not as signed, has files that no version has, or the hub refuses the card, the token
            or the repository, or can't be reached.
    """
    _require_name(repository)
    require_hub()
    signed = verify_folder(folder, key, progress)
    folder_provenance(folder, signed)
    paths = {name: folder / name for name in [*_published(folder, signed), *results]}
    sizes = {name: path.stat().st_size for name, path in paths.items()}
    try:
        with _explained(str(folder / CARD_FILE)):
            _require_card(folder / CARD_FILE)
    except _UnreachableError as error:
        if not dry_run:
            raise
        return Pushed(signed.number, sizes, unchecked=error.what)
    if dry_run:
        return Pushed(signed.number, sizes)
    api = HfApi()
    with _explained(repository):
        before = _existing(api, repository)
        if before is None:
            api.create_repo(repository, private=not public)
        stale = _stale(repository, before, paths, public=public)
        operations: list[CommitOperationAdd | CommitOperationDelete] = [
            *(CommitOperationAdd(name, path) for name, path in paths.items()),
            *(CommitOperationDelete(name) for name in stale),
        ]
        done = api.create_commit(repository, operations, commit_message=f"Version {signed.number}")
        if public and before is not None and before.private:
            api.update_repo_settings(repository, private=False)
    return Pushed(signed.number, sizes, done.oid)


def address(repository: str) -> str:
    return f"{constants.ENDPOINT}/{repository}"


def _require_name(repository: str) -> None:
    try:
        validate_repo_id(repository)
        if "/" not in repository:
            raise HFValidationError("it has no owner")
    except HFValidationError as error:
        what = f"not the name of a repository: {str(error).splitlines()[0]}"
        raise MoergeError(what, where=repository, todo="name it as org/name or user/name") from error


def _published(folder: Path, signed: SignedVersion) -> list[str]:
    """The signed files, the signature and the provenance."""
    if foreign := foreign_names(signed.files):
        what = f"has files that no version has: {', '.join(foreign)}"
        raise MoergeError(what, where=str(folder), todo=f"don't publish it; ask version {signed.number}'s operator")
    return [*signed.files, SIGNATURE_FILE, PROVENANCE_FILE]


def _require_card(path: Path) -> None:
    """Requires a card that the hub's own check accepts."""
    try:
        ModelCard.load(path).validate("model")
    except ValueError as error:
        what = f"the hub refuses the model card: {error}"
        raise MoergeError(what, where=str(path), todo="report it; an edited card is not as signed") from error


def _existing(api: HfApi, repository: str) -> ModelInfo | None:
    try:
        return api.model_info(repository)
    except RepositoryNotFoundError:
        return None  # or not for this token; then the hub refuses to create it


def _stale(repository: str, before: ModelInfo | None, paths: Mapping[str, Path], *, public: bool) -> list[str]:
    """The files of an earlier version in the repository that this one lacks."""
    if before is None:
        return []
    if not before.private and not public:
        todo = "set `public`, or name another repository"
        raise MoergeError("is public already", where=repository, todo=todo)
    old = [file.rfilename for file in before.siblings or [] if file.rfilename not in paths]
    covered = [name for name in old if name.partition("/")[0] not in UNSIGNED]
    if foreign := foreign_names(covered):
        what = f"has files that no version has: {', '.join(foreign)}"
        todo = "remove them there, or name another repository: `moerge verify` would refuse a copy"
        raise MoergeError(what, where=repository, todo=todo)
    return [*covered, *(name for name in old if name.startswith(".eval_results/"))]


class _UnreachableError(MoergeError):
    """The hub can't be reached."""


@contextmanager
def _explained(where: str) -> Iterator[None]:
    """Errors of the hub and its library as MoergeErrors."""
    try:
        yield
    except HfHubHTTPError as error:
        status = error.response.status_code
        todo = _LOGIN if status in (401, 403, 404) else _AGAIN
        what = f"the hub answers {status}: {error.server_message or _first(error)}"
        raise MoergeError(what, where=where, todo=todo) from error
    except (HTTPError, OfflineModeIsEnabled) as error:
        what, todo = f"{constants.ENDPOINT} can't be reached: {_first(error)}", "check the network and HF_ENDPOINT"
        raise _UnreachableError(what, where=where, todo=f"{todo}; {_AGAIN}") from error
    except (RuntimeError, ValueError) as error:  # of an upload
        cause = error.__cause__ or error
        raise MoergeError(f"the upload failed: {_first(cause)}", where=where, todo=_AGAIN) from error


def _first(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
