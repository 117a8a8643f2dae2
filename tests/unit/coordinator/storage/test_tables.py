"""Columns load as messages, enums and UTC; rows are dated by the clock, and unique where a law says so."""

from datetime import datetime, timedelta, timezone

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from moerge_coordinator.storage.database import Database
from moerge_coordinator.storage.tables import Base, BodyRow, ExpertRow, KeyRow, ShardRow, VersionRow
from moerge_proto.experts import ExpertState, Parts
from moerge_proto.messages import FileEntry
from moerge_proto.problems import Problem
from moerge_proto.versions import Lineage, VersionFile
from support.rows import START, Clock, add_body, add_contribution, add_expert, add_version, dense_of

PROBLEM = Problem(type="urn:moerge:problem:conflict", title="Conflict", status=409, detail="why")


def test_values_come_back_as_what_they_were(database: Database) -> None:
    east = timezone(timedelta(hours=3))
    with database.transaction("test") as session:
        law = add_expert(session, "law", problem=PROBLEM, withdrawn=datetime(2030, 1, 1, 5, tzinfo=east))
        add_contribution(session, law, add_body(session))
        lineage, files = add_version(session).lineage, [file.model_copy() for file in law.files]
    with database.reading() as session:
        expert, body, version = session.get(ExpertRow, 1), session.get(BodyRow, 1), session.get(VersionRow, 1)
        stored = session.execute(text("SELECT state, withdrawn, files FROM experts")).one()
    assert expert is not None
    assert body is not None
    assert version is not None
    assert (expert.problem, expert.files, expert.state) == (PROBLEM, files, ExpertState.READY)
    assert isinstance(expert.files[0], FileEntry)
    assert isinstance(expert.state, ExpertState)
    assert expert.withdrawn == datetime(2030, 1, 1, 5, tzinfo=east)
    assert expert.withdrawn.utcoffset() == timedelta(0)
    assert (stored.state, stored.withdrawn[:19]) == ("ready", "2030-01-01 02:00:00")
    assert expert.parts == Parts(expert=dense_of("law"), body=body.digest, fitted=True)
    assert (body.source, body.bounds) == ("seed", [1.0, 1.0])
    assert (version.lineage, type(version.lineage), type(version.files[0])) == (lineage, Lineage, VersionFile)


def test_nothing_is_null_and_words_are_the_enum_s(session: Session) -> None:
    add_expert(session, "law")
    assert session.execute(text("SELECT count(*) FROM experts WHERE problem IS NULL")).scalar() == 1
    session.execute(text("UPDATE experts SET state = 'lost'"))
    session.expire_all()
    with pytest.raises(ValueError, match="lost"):
        session.get(ExpertRow, 1)


def test_row_creation_time_defaults_to_the_clock(session: Session, clock: Clock) -> None:
    clock.later(hours=1)
    law = add_expert(session, "law")
    clock.later(hours=1)
    assert law.created == START + timedelta(hours=1)
    assert add_expert(session, "art", created=START).created == START


def test_what_laws_forbid_the_tables_refuse(session: Session) -> None:
    law = add_expert(session, "law")
    body = add_body(session)
    part = add_contribution(session, law, body)
    add_contribution(session, law, None)
    add_expert(session, "law", add_body(session, "other"))
    session.add(ShardRow(body=body.digest, domain="law", shard="1" * 64, contribution=part.digest))
    session.add(KeyRow(owner="law-owner", public_key="0" * 64, fingerprint="0" * 64))
    session.flush()
    session.expunge(session.get_one(ShardRow, (body.digest, "law", "1" * 64)))

    def forbidden(row: Base) -> None:
        with pytest.raises(IntegrityError), session.begin_nested():
            session.add_all([row])

    forbidden(ShardRow(body=body.digest, domain="law", shard="1" * 64, contribution=part.digest))
    forbidden(KeyRow(owner="law-owner", public_key="1" * 64, fingerprint="1" * 64))
    with pytest.raises(IntegrityError), session.begin_nested():
        add_expert(session, "law", body, files=[])
    with pytest.raises(IntegrityError), session.begin_nested():
        add_contribution(session, law, None, tokens=7)
