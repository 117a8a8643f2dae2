"""Grants through a real server: owners decide, readers pull parts, ends and revocations, keeping, checking online."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from moerge.blobs.s3 import S3
from moerge.errors import CoordinatorError
from moerge_proto.owners import NewToken, Role
from support.federation import Federation, champion_of, eventually, federation_of
from support.processes import moerge
from support.servers import Postgres, settings


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    """Version 1 of law, art and code is the champion."""
    with champion_of(tmp_path / "federation", "law", "art", "code") as federation:
        yield federation


def reader(federation: Federation, name: str, *groups: str) -> dict[str, str]:
    """The environment of a reader's commands."""
    return {"MOERGE_COORDINATOR": federation.server.url, "MOERGE_TOKEN": federation.reader(name, *groups)}


def owner(federation: Federation, domain: str) -> dict[str, str]:
    return {"MOERGE_COORDINATOR": federation.server.url, "MOERGE_TOKEN": federation.members[domain].token}


def _bytes_in(said: str) -> float:
    """The fetched bytes that a pull's line has."""
    number, unit = re.findall(r"([0-9.]+) (bytes|kB|MB) fetched", said)[0]
    return float(number) * {"bytes": 1, "kB": 1e3, "MB": 1e6}[unit]


def test_a_reader_pulls_the_experts_that_are_granted_to_it(federation: Federation, tmp_path: Path) -> None:
    anna, ben, law = reader(federation, "anna", "clinic"), reader(federation, "ben"), owner(federation, "law")
    said = moerge("expert", "grant", "law", "--to", "clinic", "--until", "2099-12-31", "--yes", **law)
    assert said == "law is granted to clinic. Readers who may use it now: anna."
    assert "version 1, " in moerge("pull", "champion", tmp_path / "anna", **anna)
    pulled = moerge("pull", "champion", tmp_path / "ben", **ben)
    [part] = [row for row in federation.operator.version_parts(1) if row.left_out]
    assert (part.domains, part.left_out, part.readers, part.made) == (["art", "code"], ["law"], ["ben"], True)
    assert f"version {part.name}, " in pulled
    assert "the part with the experts that are granted to you: art, code" in pulled
    record = json.loads((tmp_path / "ben" / "moerge.json").read_text())
    assert record["domains"] == ["art", "code"]
    card = (tmp_path / "ben" / "README.md").read_text()
    assert f"Version {part.name}, published on" in card
    assert "This is the part of version 1 that has the experts of art, code only." in card
    verified = moerge("verify", tmp_path / "ben")
    assert f"version {part.name}, " in verified
    facts = json.loads(moerge("verify", tmp_path / "ben", "--json"))
    assert (facts["version"], f"1+{facts['part']}") == (1, part.name)
    assert part.name in moerge("version", "parts", "champion", **federation.server.environment())
    again = json.loads(
        moerge("pull", part.name, tmp_path / "again", **ben) and (tmp_path / "again/moerge.json").read_text()
    )
    assert again == record
    assert "law" not in moerge("expert", "grants", **ben)
    assert "2099-12-31 00:00 UTC" in moerge("expert", "grants", **anna)


def test_the_end_of_a_grant_takes_files_out_of_the_folder(federation: Federation, tmp_path: Path) -> None:
    """First it says so; `--keep` is refused, `verify --online` too, until the next pull."""
    ben, law, model = reader(federation, "ben"), federation.members["law"].client, tmp_path / "model"
    law.grant("law", "ben", datetime.now(UTC) + timedelta(seconds=6))
    moerge("pull", "champion", model, **ben)
    moerge("verify", model, "--online", **ben)
    mlps = {path.name for path in model.glob("*expert*")}
    with federation.server.client(ben["MOERGE_TOKEN"]) as client:
        eventually(lambda: "law" not in {row.domain for row in client.usable()})
    with pytest.raises(AssertionError, match="out of date: experts of version 1 aren't granted to you: law"):
        moerge("verify", model, "--online", **ben)
    with pytest.raises(AssertionError, match="would keep the MLPs of experts that aren't granted to you: law"):
        moerge("pull", "champion", model, "--keep", **ben)
    assert {path.name for path in model.glob("*expert*")} == mlps
    said = moerge("pull", "champion", model, **ben)
    assert len([*model.glob("*expert*")]) < len(mlps)
    assert _bytes_in(said) < min(path.stat().st_size for path in model.glob("*expert*")), "MLPs only change their slots"
    moerge("verify", model, "--online", **ben)
    law.grant("law", "all")
    moerge("pull", "champion", model, "--keep", **ben)
    assert {path.name for path in model.glob("*expert*")} == mlps
    [kept] = tmp_path.glob("model-1+*")
    assert json.loads((kept / "moerge.json").read_text())["domains"] == ["art", "code"]


def test_rules_of_owners_and_of_the_federation(tmp_path: Path) -> None:
    with federation_of(tmp_path, "law", "art", settings='readers = "named"\n') as federation:
        federation.contribute(federation.body())
        federation.solve()
        law, art = (member.client for member in federation.members.values())
        ben = reader(federation, "ben", "lab")
        with federation.server.client(ben["MOERGE_TOKEN"]) as client:
            with pytest.raises(CoordinatorError, match="no expert of version 1 is granted to you"):
                client.make_part(1)
            assert client.usable() == []
            law.grant("law", "all")
            part = client.version(client.wait(client.make_part(1)))
            assert part.lineage.domains == ["law"]
            art.grant("art", "lab")
            assert client.wait(client.make_part(1)) == "1"
            assert law.revoke_grant("law", "ben").still == ["all"]
            assert client.wait(client.make_part(1)) == "1"
            assert art.revoke_grant("art", "lab").readers == []
            assert client.wait(client.make_part(1)) == part.name
        with pytest.raises(CoordinatorError, match="does not belong to owner"):
            law.grant("art", "all")
        with pytest.raises(CoordinatorError, match="is not in the future"):
            law.grant("law", "ben", datetime(2020, 1, 1, tzinfo=UTC))
        with pytest.raises(CoordinatorError, match="stands for all readers"):
            federation.operator.add_token(NewToken.model_construct(role=Role.READER, name="all", groups=[]))
        decided = [(row.domain, row.reader, row.granted) for row in law.grants()]
        assert decided == [("law", "all", True), ("law", "ben", False)]
        log = [entry.name for entry in federation.operator.log() if entry.kind == "grant"]
        assert log == ["1", "2", "3", "4"]
        assert ": 0 damaged, 0 litter" in federation.moerge("coordinator", "verify", federation.server.home)


def test_revoking_one_reader_does_not_close_a_domain_to_all(federation: Federation) -> None:
    law = federation.members["law"].client
    with pytest.raises(CoordinatorError, match="open to all readers, because you have granted it to none"):
        law.revoke_grant("law", "ben")
    assert law.readers("law").own_rule is False
    reader(federation, "ben")
    assert law.revoke_grant("law", "all").readers == []
    assert law.readers("law").own_rule is True


def test_parts_are_made_before_readers_pull_and_go_with_their_version(federation: Federation, tmp_path: Path) -> None:
    law = federation.members["law"].client
    anna, ben, _ = (reader(federation, name) for name in ("anna", "ben", "eve"))
    law.grant("law", "anna")
    federation.members["art"].client.grant("art", "ben")
    shown = federation.moerge("version", "parts", 1, "--make")
    assert "not made" not in shown
    rows = federation.operator.version_parts(1)
    assert [(row.domains, row.readers) for row in rows] == [
        (["law", "code"], ["anna"]), (["art", "code"], ["ben"]), (["code"], ["eve"]),
    ]  # fmt: skip
    assert [version.name for version in federation.operator.versions()] == ["1"]
    assert [path.name for path in (federation.server.home / "versions").iterdir()] == ["1"]
    assert ": 0 damaged, 0 litter" in federation.moerge("coordinator", "verify", federation.server.home)
    law.withdraw_expert(federation.expert("law").digest, serve=False)
    moerge("pull", "1", tmp_path / "ben", **ben)
    with pytest.raises(AssertionError, match=r"version 1\+\w+ is withheld: it contains a withdrawn expert"):
        moerge("pull", "1", tmp_path / "anna", **anna)
    federation.operator.remove_alias("champion")
    federation.operator.retire_version(1)
    assert not [*(federation.server.home / "versions").iterdir()]
    with pytest.raises(CoordinatorError, match=r"version 1\+\w+ is retired"):
        federation.operator.signed_card(rows[0].name)
    assert ": 0 damaged, 0 litter" in federation.moerge("coordinator", "verify", federation.server.home)


def test_a_part_is_served_from_postgresql_and_s3(postgres: Postgres, s3: S3, tmp_path: Path) -> None:
    """Files of MLPs in other slots are put together from the store's; a killed download goes on."""
    with federation_of(tmp_path / "home", "law", "art", settings=settings(postgres.database(), s3)) as federation:
        federation.contribute(federation.body())
        federation.solve()
        ben, model = reader(federation, "ben"), tmp_path / "model"
        federation.members["law"].client.grant("law", "nobody")
        moerge("pull", "1", model, **ben)
        assert json.loads((model / "moerge.json").read_text())["domains"] == ["art"]
        [mlps] = model.glob("*expert*")
        whole = mlps.read_bytes()
        with federation.server.client(ben["MOERGE_TOKEN"]) as client:
            name = client.wait(client.make_part(1))
            with client.content(f"/v1/versions/{name}/files/{mlps.name}", {"Range": "bytes=5-20"}) as response:
                assert (response.status_code, response.read()) == (206, whole[5:21])
        for blob in (federation.server.home / "cache").glob("??/*"):
            blob.unlink()
        moerge("pull", "1", tmp_path / "again", **ben)
        assert (tmp_path / "again" / mlps.name).read_bytes() == whole
        assert ": 0 damaged, 0 litter" in federation.moerge("coordinator", "verify", federation.server.home)
