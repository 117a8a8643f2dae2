"""A keeper over HTTP: the answer's bytes, and refusals that say why."""

import io
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import uvicorn

from moerge.errors import CoordinatorError, MoergeError
from moerge.keeper import server
from moerge.keeper.asking import KeeperUnavailableError, fetch_masks
from moerge.keeper.journal import Keeper
from moerge_proto.digests import sha256_hex
from moerge_proto.masks import MasksRequest, summed
from moerge_proto.problems import MEDIA_TYPE
from support.masked import MaskedOwner, keeper_of

OWNERS = [MaskedOwner(domain) for domain in ("art", "code", "law")]


@pytest.fixture
def keeper(tmp_path: Path) -> Keeper:
    return keeper_of(tmp_path, OWNERS)


@pytest.fixture
def url(keeper: Keeper) -> Iterator[str]:
    running = uvicorn.Server(uvicorn.Config(server.make_app(keeper), port=0, log_config=None))
    thread = threading.Thread(target=running.run)
    thread.start()
    while not running.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}"
    running.should_exit = True
    thread.join()


def test_an_answer_is_the_sum_of_the_masks(keeper: Keeper, url: str) -> None:
    request = MasksRequest(parts=[owner.part([keeper.public_key]) for owner in OWNERS])
    out = io.BytesIO()
    digest = fetch_masks(url, request, out)
    assert out.getvalue() == b"".join(summed(request, keeper.seeds(request)))
    assert digest == sha256_hex(out.getvalue())
    assert len(out.getvalue()) == request.answer_bytes


def test_a_refusal_names_the_keeper_and_its_reason(keeper: Keeper, url: str) -> None:
    request = MasksRequest(parts=[owner.part([keeper.public_key]) for owner in OWNERS[:2]])
    with pytest.raises(CoordinatorError, match=f"keeper {url} refuses: 2 owners"):
        fetch_masks(url, request, io.BytesIO())
    with pytest.raises(KeeperUnavailableError, match="not a keeper's"):
        fetch_masks(f"{url}/elsewhere", request, io.BytesIO())


def test_an_unusable_proxy_is_named_by_its_variable(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    request = MasksRequest(parts=[owner.part([keeper.public_key]) for owner in OWNERS])
    monkeypatch.setenv("HTTPS_PROXY", "ftp://proxy.example.org")
    with pytest.raises(MoergeError) as caught:
        fetch_masks("https://keeper.example.org", request, io.BytesIO())
    assert caught.value.where == "HTTPS_PROXY"


def test_a_taken_port_is_told_with_its_remedy(keeper: Keeper, url: str) -> None:
    with pytest.raises(MoergeError, match="Address already in use") as caught:
        server.serve(keeper, "127.0.0.1", httpx.URL(url).port or 0)
    assert "choose another" in caught.value.todo


def test_other_requests_are_problems(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for content in (b"", b"{}", b'{"parts": [{"owner": "x"}]}'):
        answer = httpx.post(f"{url}/v1/masks", content=content)
        assert (answer.status_code, answer.headers["content-type"]) == (422, MEDIA_TYPE)
    monkeypatch.setattr(server, "MAX_REQUEST_BYTES", 10)
    assert httpx.post(f"{url}/v1/masks", content=b"x" * 11).status_code == 413
