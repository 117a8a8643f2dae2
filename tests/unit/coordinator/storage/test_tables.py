"""Columns load as messages, enums and UTC; rows are dated by the clock, and unique where a law says so."""

from datetime import datetime, timedelta, timezone

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from moerge_coordinator.storage.database import Database
from moerge_coordinator.storage.tables import Base, BodyRow, ExpertRow, KeyRow, ShardRow, VersionRow
from moerge_proto.bodies import BodyOptions
from moerge_proto.experts import ExpertState
from moerge_proto.messages import FileEntry
from moerge_proto.problems import Problem
from moerge_proto.versions import Lineage, VersionFile
from support.rows import START, Clock, add_body, add_contribution, add_expert, add_version

PROBLEM = Problem(type="urn:moerge:problem:conflict", title="Conflict", status=409, detail="why")


def test_values_come_back_as_what_they_were(database: Database) -> None:
    east = timezone(timedelta(hours=3))
    with database.transaction("test") as session:
        law = add_expert(session, "law", problem=PROBLEM, withdrawn=datetime(2030, 1, 1, 5, tzinfo=east))
        body = add_body(session, [law], method="weighted", options=BodyOptions(weights={"law": 2.0}))
        add_contribution(session, law, body)
        lineage, files = add_version(session).lineage, [file.model_copy() for file in law.files]
    with database.reading() as session:
        expert, merged, version = session.get(ExpertRow, 1), session.get(BodyRow, 1), session.get(VersionRow, 1)
        stored = session.execute(text("SELECT state, withdrawn, files FROM experts")).one()
    assert expert is not None
    assert merged is not None
    assert version is not None
    assert (expert.problem, expert.files, expert.state) == (PROBLEM, files, ExpertState.READY)
    assert isinstance(expert.files[0], FileEntry)
    assert isinstance(expert.state, ExpertState)
    assert expert.withdrawn == datetime(2030, 1, 1, 5, tzinfo=east)
    assert expert.withdrawn.utcoffset() == timedelta(0)
    assert (stored.state, stored.withdrawn[:19]) == ("ready", "2030-01-01 02:00:00")
    assert (expert.parts, expert.dense, merged.source) == (None, expert.digest, None)
    assert merged.options == BodyOptions(weights={"law": 2.0})
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
    body = add_body(session, [law])
    part = add_contribution(session, law, body)
    for kind in ("body", "head"):
        add_contribution(session, law, None, kind=kind)
    other = add_body(session, [law], method="ties")
    for item in (body, other):
        add_expert(session, "law", parts=(law.digest, item.digest))
    session.add(ShardRow(body=body.digest, domain="law", shard="1" * 64, contribution=part.digest))
    session.add(KeyRow(owner="law-owner", public_key="0" * 64, fingerprint="0" * 64))
    session.flush()
    session.expunge(session.get_one(ShardRow, (body.digest, "law", "1" * 64)))

    def forbidden(row: Base) -> None:
        with pytest.raises(IntegrityError), session.begin_nested():
            session.add_all([row])

    forbidden(ShardRow(body=body.digest, domain="law", shard="1" * 64, contribution=part.digest))
    forbidden(KeyRow(owner="law-owner", public_key="1" * 64, fingerprint="1" * 64))
    for parts in (None, ("0" * 64, body.digest)):
        with pytest.raises(IntegrityError), session.begin_nested():
            add_expert(session, "law", parts, files=[])
    for kind in ("body", "head"):
        with pytest.raises(IntegrityError), session.begin_nested():
            add_contribution(session, law, None, kind=kind, tokens=7)
