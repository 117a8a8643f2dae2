"""An owner with a valid token who makes the coordinator's checks costly."""

import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from moerge.errors import CoordinatorError
from moerge.fits.parts import write_parts
from moerge.models.adapter_settings import AdapterSettings
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import DenseExpert, dense_folder, expert_files, file_digests, is_weights
from moerge_coordinator.workflows.runner import KEPT
from moerge_proto.digests import sha256_hex
from moerge_proto.experts import ExpertState, NewAdapter, NewExpert, Parts
from moerge_proto.workflows import WorkflowEntry, WorkflowState
from support.federation import SILENT, Federation, Member, eventually, federation_of
from support.models import adapter
from support.processes import peak_bytes
from support.uploads import RawClient, announced


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with federation_of(tmp_path_factory.mktemp("checks"), "base") as made:
        yield made


def test_wrong_digest_of_an_adapter_costs_one_merge_an_hour(federation: Federation, tmp_path: Path) -> None:
    lora = adapter(tmp_path / "adapter", federation.seed, 7, "down_proj")
    dense = dense_folder(DenseFiles(lora), tmp_path / "dense")
    place = write_parts(DenseFiles(dense), tmp_path / "parts", own_head=False)
    owner, files = federation.join("law", lora), file_digests(DenseFiles(place))
    small = [place / name for name in files if not is_weights(name)]
    *_, weights = [owner.client.upload(path, SILENT, title="") for path in (*small, lora / "adapter_model.safetensors")]
    body, settings = federation.body().digest, AdapterSettings.of(lora).relevant
    parts = Parts(expert=DenseExpert("law", dense).digest, body=body, fitted=False, own_head=False)
    sent = NewAdapter(base=body, weights=weights.sha256, settings=settings)

    def register(digest: str) -> str:
        lying = {**files, "model.safetensors": digest}
        return owner.client.register_expert(NewExpert(domain="law", files=lying, adapter=sent, parts=parts)).digest

    first = register("1" * 64)
    eventually(lambda: next(iter(federation.operator.workflows("expert"))).state is WorkflowState.FAILED)
    assert owner.client.expert(first).state is ExpertState.REFUSED
    for path in small:  # a refusal discards them
        owner.client.upload(path, SILENT, title="")
    with pytest.raises(CoordinatorError, match="gave other bytes here than its digest") as refused:
        register("2" * 64)
    assert refused.value.where == "adapter.base", "so that an honest client sends the merged model"


# --- small files


NESTED = b'{"a": [' + b"[]," * 2**24 + b"[]]}"  # a few KB as zstd; a gigabyte as objects


@pytest.mark.parametrize("name", ["tokenizer_config.json", "tokenizer.json", "special_tokens_map.json"])
def test_small_file_that_is_dear_to_parse_is_refused_first(federation: Federation, tmp_path: Path, name: str) -> None:
    folder = Path(shutil.copytree(federation.members["base"].place, tmp_path / "expert"))
    (folder / name).write_bytes(NESTED)
    owner = federation.join(f"nested-{len(federation.members)}", folder)
    paths = expert_files(DenseFiles(folder))
    sent = {item: owner.client.upload(path, SILENT, title="", compress=True) for item, path in paths.items()}
    files = {item: stored.sha256 for item, stored in sent.items()}
    new = replace(owner, parts=federation.members["base"].parts).new(files)
    before = peak_bytes(federation.server, anew=True)
    with pytest.raises(CoordinatorError, match="expected at most"):
        owner.client.check_expert(new)
    assert peak_bytes(federation.server) - before < 2**26


# --- contributions


def raw(federation: Federation, member: Member) -> RawClient:
    return RawClient(federation.server.url, member.token)


def uploaded(client: RawClient, data: bytes) -> str:
    """The digest of an uploaded file."""
    upload = client.open(announced(data))
    if upload.missing:
        client.put(upload, data).raise_for_status()
    client.commit(upload).raise_for_status()
    return sha256_hex(data)


def submitted(client: RawClient, sha256: str, *supersedes: str) -> httpx.Response:
    return client.request("PUT", f"/contributions/{sha256}", json={"supersedes": supersedes})


def workflows(federation: Federation) -> list[WorkflowEntry]:
    return list(federation.operator.workflows("contribution"))


def test_foreign_supersedes_start_no_workflow(federation: Federation) -> None:
    client, before = raw(federation, federation.members["base"]), workflows(federation)
    sha256 = uploaded(client, b"no statistics")
    for supersedes in (["0" * 64], [f"{n:064}" for n in range(10_000)]):
        refused = submitted(client, sha256, *supersedes)
        assert (refused.status_code, refused.json()["field"]) == (409, "supersedes")
    assert workflows(federation) == before


def test_checks_of_an_owner_run_one_by_one(federation: Federation) -> None:
    client, before = raw(federation, federation.members["base"]), len(workflows(federation))
    files = [uploaded(client, f"no statistics {n}".encode()) for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda sha256: submitted(client, sha256), files))
    assert {answer.status_code for answer in answers} == {202, 429}
    assert all(answer.headers["Retry-After"] == "1" for answer in answers if answer.status_code == 429)
    eventually(lambda: all(item.state is WorkflowState.FAILED for item in workflows(federation)))
    made = workflows(federation)[: len(workflows(federation)) - before]
    assert made
    assert all(later.created >= earlier.updated for later, earlier in pairwise(made))


def test_refused_contributions_leave_few_rows(federation: Federation) -> None:
    """The numbers of attempts go on where the first ones are gone."""
    client = raw(federation, federation.members["base"])
    for _ in range(KEPT + 6):
        started = submitted(client, uploaded(client, b"the same"))
        while started.status_code == 429:
            time.sleep(0.05)
            started = submitted(client, sha256_hex(b"the same"))
        id_ = started.raise_for_status().json()["id"]
        eventually(lambda: federation.operator.workflow(id_).state is WorkflowState.FAILED)  # noqa: B023  # at once
    assert id_.endswith(f"-{KEPT + 6}")
    assert len(workflows(federation)) <= KEPT + 1
