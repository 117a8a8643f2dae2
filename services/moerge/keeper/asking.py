"""Requests to a keeper."""

import hashlib
from typing import BinaryIO

import httpx

from moerge import network
from moerge.errors import CoordinatorError, MoergeError
from moerge_proto.masks import MasksRequest
from moerge_proto.problems import Problem, ProblemType

_TIMEOUT = httpx.Timeout(60.0, read=600.0)


class KeeperUnavailableError(MoergeError):
    """A keeper doesn't answer; try again."""

    kind = ProblemType.NOT_READY


def fetch_masks(url: str, request: MasksRequest, out: BinaryIO) -> str:
    """Writes a keeper's answer to `out` and returns its SHA-256.

    Raises:
        CoordinatorError: the keeper refuses.
        KeeperUnavailableError: it doesn't answer, or not completely.
    """
    digest, size = hashlib.sha256(), 0
    try:
        with (
            network.client(httpx.URL(url), timeout=_TIMEOUT) as client,
            client.stream("POST", f"{url}/v1/masks", content=request.model_dump_json().encode()) as response,
        ):
            if response.status_code != httpx.codes.OK:
                raise _refusal(url, response)
            for piece in response.iter_bytes():
                size += len(piece)
                if size > request.answer_bytes:
                    break
                digest.update(piece)
                out.write(piece)
    except httpx.HTTPError as error:
        todo = "start the keeper, or correct its address in `keepers`; then solve again"
        raise KeeperUnavailableError(f"doesn't answer: {error}", where=f"keeper {url}", todo=todo) from error
    if size != request.answer_bytes:
        what = f"expected {request.answer_bytes} bytes, received {size}"
        raise KeeperUnavailableError(what, where=f"keeper {url}", todo="solve again")
    return digest.hexdigest()


def _refusal(url: str, response: httpx.Response) -> MoergeError:
    try:
        problem = Problem.model_validate_json(response.read())
    except ValueError:
        what = f"answers with status {response.status_code}, which is not a keeper's"
        return KeeperUnavailableError(what, where=f"keeper {url}", todo="correct its address in `keepers`")
    return CoordinatorError(problem.model_copy(update={"detail": f"keeper {url} refuses: {problem.detail}"}))
