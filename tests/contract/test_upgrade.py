"""Upgrades: workers of the version before go on, and workflows that ran start anew."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from moerge_proto.contributions import Contribution
from moerge_proto.workflows import WorkflowState
from support.federation import (
    SILENT,
    Federation,
    Member,
    eventually,
    federation_of,
    honest,
    honest_trunk,
    send_trunk,
)
from support.statistics import written

TRUNK = {
    "number", "digest", "owner", "domain", "expert", "tokens", "documents", "size", "active", "software", "signature",
    "fingerprint", "created", "withdrawn",
}  # fmt: skip
"""Fields of a trunk contribution in the version before."""
ROUTER = TRUNK | {"split", "trunk", "shards", "warnings"}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with federation_of(tmp_path_factory.mktemp("upgrade"), "law") as made:
        yield made


def earlier(federation: Federation, member: Member, method: str, path: str, body: Any = None) -> httpx.Response:
    """A call as a worker of the version before makes it."""
    headers = {"Authorization": f"Bearer {member.token}"}
    return httpx.request(method, f"{federation.server.url}/v1{path}", headers=headers, json=body)


@pytest.mark.parametrize(
    ("place", "fields"), [("contributions", ROUTER), ("trunk-contributions", TRUNK)], ids=["router", "trunk"]
)
def test_a_worker_of_the_version_before_contributes_lists_and_withdraws(
    federation: Federation, tmp_path: Path, place: str, fields: set[str]
) -> None:
    law = federation.members["law"]
    sums = honest_trunk(law) if fields is TRUNK else honest(federation.server, law, federation.merge())
    digest = law.client.upload(written(tmp_path / "file", *sums), SILENT, title="file").sha256
    sent = earlier(federation, law, "post", f"/{place}", {"sha256": digest})
    assert (sent.status_code, sent.json().keys()) == (201, fields), sent.text
    assert earlier(federation, law, "post", f"/{place}", {"sha256": digest}).json() == sent.json()
    assert earlier(federation, law, "get", f"/{place}").json()["items"] == [sent.json()]
    withdrawn = earlier(federation, law, "post", f"/{place}/{digest}/withdraw")
    assert (withdrawn.json().keys(), withdrawn.json()["active"]) == (fields, False)


def test_what_is_refused_is_refused_on_the_earlier_route_too(federation: Federation, tmp_path: Path) -> None:
    law = federation.members["law"]
    manifest, sums = honest(federation.server, law, federation.merge(), first=9)
    path = written(tmp_path / "file", manifest.model_copy(update={"trunk": "0" * 64}), sums)
    digest = law.client.upload(path, SILENT, title="file").sha256
    refused = earlier(federation, law, "post", "/contributions", {"sha256": digest})
    assert (refused.status_code, refused.json()["field"]) == (409, "manifest.trunk"), refused.text
    again = earlier(federation, law, "post", "/contributions", {"sha256": digest})
    assert again.json()["detail"] == f"no complete upload {digest}", "a refused file is not kept"


def test_a_contribution_of_each_kind_is_one_message(federation: Federation, tmp_path: Path) -> None:
    law = federation.members["law"]
    federation.contribute(federation.merge(), "law", first=20)
    [router] = [row for row in law.client.contributions() if row.active]
    [trunk] = law.client.contributions("trunk")
    assert (router.kind, trunk.kind) == ("router", "trunk")
    assert (trunk.split, trunk.trunk, trunk.shards) == (None, None, None)
    shown = earlier(federation, law, "get", f"/contributions/{trunk.digest}")
    assert Contribution.model_validate_json(shown.content) == trunk


def test_a_contribution_that_counts_is_checked_no_more(federation: Federation) -> None:
    law = federation.members["law"]
    [sent] = federation.contribute(federation.merge(), "law", first=30)
    before = len(list(federation.operator.workflows()))
    again = earlier(federation, law, "put", f"/contributions/{sent.digest}", {"software": {"other": "1"}})
    assert (again.status_code, again.json()["state"], again.json()["result"]) == (202, "done", sent.digest)
    assert len(list(federation.operator.workflows())) == before


def test_a_trunk_of_an_earlier_revision_serves_on_and_is_not_taken_for_a_new_one(federation: Federation) -> None:
    law = federation.members["law"]
    sums = written(federation.folder / "trunk", *honest_trunk(law))
    send_trunk(law, sums, *(row.digest for row in law.client.contributions("trunk") if row.active))
    new = federation.merge(method="regmean")
    federation.server.stop()
    with closing(sqlite3.connect(federation.server.home / "coordinator.sqlite")) as database, database:
        earlier_one = "UPDATE trunks SET revision = 1, digest = ? WHERE digest = ?"
        assert database.execute(earlier_one, ["1" * 64, new.digest]).rowcount == 1
    federation.server.start()
    old = federation.trunk()
    assert (old.digest, old.current) == ("1" * 64, True)
    federation.contribute(old, first=40)
    version = federation.solve()
    again = federation.merge(method="regmean")
    assert (again.digest, again.current) == (new.digest, True), "merged anew, by the formula of this build"
    assert {each.digest for each in federation.operator.trunks()} >= {old.digest, new.digest}
    assert federation.operator.version(version.number) == version
    assert (federation.version(version.number) / "model-trunk.safetensors").is_file()


def test_workflows_that_ran_when_an_earlier_build_stopped_start_anew(federation: Federation) -> None:
    trunk = federation.merge()
    ran = next(each for each in federation.operator.workflows() if each.result == trunk.digest)
    federation.server.stop()
    with closing(sqlite3.connect(federation.server.home / "workflows.sqlite")) as database, database:
        cut = "status = 'PENDING', output = NULL, application_version = '3'"
        update = f"UPDATE workflow_status SET {cut} WHERE workflow_uuid = ?"  # noqa: S608  # written here
        assert database.execute(update, [ran.id]).rowcount == 1
    federation.server.start()
    anew = f"{ran.id.rpartition('-')[0]}-{int(ran.id.rpartition('-')[2]) + 1}"
    eventually(lambda: federation.operator.workflow(ran.id).state is WorkflowState.FAILED)
    eventually(lambda: federation.operator.workflow(anew).result == trunk.digest)
