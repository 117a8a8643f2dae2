"""Aliases: forward and back, and champion only to versions that are served and signed."""

from pathlib import Path

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge_coordinator.domain import aliases, version_keys
from moerge_coordinator.domain.withdrawal import withdraw_expert
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.settings import Settings
from moerge_coordinator.storage.tables import AliasMoveRow, ExpertRow, VersionKeyRow, VersionRow, now
from moerge_proto.versions import CHAMPION, Move, Rollback
from support.rows import add_body, add_contribution, add_expert, add_version

FINGERPRINT = "f" * 64
MOST = Settings(home=Path("unused"))
SIGNED = Settings(home=Path("unused"), promotion_signed=True)


@pytest.fixture
def versions(session: Session) -> list[VersionRow]:
    """Versions 1 to 3 of law and art, which differ by lambda."""
    experts = [add_expert(session, domain) for domain in ("law", "art")]
    body = add_body(session)
    for expert in experts:
        add_contribution(session, expert, body)
    return [add_version(session, options={"ridge_lambda": value}) for value in (1.0, 2.0, 3.0)]


def promote(session: Session, version: int, name: str = CHAMPION, **how: str) -> int:
    move = Move.model_validate({"version": version, **how})
    return aliases.promote(session, name, move, "operator, token 1", MOST, ()).version


def back(session: Session, version: int) -> int:
    return aliases.roll_back(session, CHAMPION, Rollback(version=version), "operator, token 1").version


def test_alias_is_promoted_and_rolled_back_idempotently(session: Session, versions: list[VersionRow]) -> None:
    assert [promote(session, number) for number in (1, 2, 2, 3)] == [1, 2, 2, 3]
    assert [back(session, 3), back(session, 3), back(session, 2)] == [2, 2, 1]
    with pytest.raises(RefusedError, match="no earlier version"):
        back(session, 1)
    promote(session, 3)
    with pytest.raises(RefusedError, match="points to version 3, not 1"):
        back(session, 1)
    moves = session.scalars(select(AliasMoveRow).order_by(AliasMoveRow.number))
    assert [(move.kind, move.previous, move.version) for move in moves] == [
        ("promote", None, 1), ("promote", 1, 2), ("promote", 2, 3), ("rollback", 3, 2), ("rollback", 2, 1),
        ("promote", 1, 3),
    ]  # fmt: skip


def test_a_rollback_passes_over_versions_that_are_not_served(session: Session, versions: list[VersionRow]) -> None:
    for number in (1, 2, 3):
        promote(session, number)
    versions[1].withheld = now(session)
    assert back(session, 3) == 1


def test_champion_can_be_required_to_be_signed(session: Session, versions: list[VersionRow]) -> None:
    def move(number: int, name: str = CHAMPION) -> int:
        return aliases.promote(session, name, Move(version=number, override="now"), "operator", SIGNED, ()).version

    session.add(VersionKeyRow(public_key="PEM", fingerprint=FINGERPRINT))
    versions[1].key, versions[2].key = None, FINGERPRINT
    with pytest.raises(RefusedError, match="version 2 is not signed") as caught:
        move(2)
    assert aliases.check(session, 2, SIGNED, ()).refusal == caught.value.what
    assert aliases.check(session, 3, SIGNED, ()).refusal is None
    assert "moerge version sign 2" in caught.value.todo
    assert [move(2, "candidate"), move(1), promote(session, 2), move(3)] == [2, 1, 2, 3]
    signed = aliases.roll_back(session, CHAMPION, Rollback(version=3), "operator", signed=True)
    assert signed.version == 1
    with pytest.raises(RefusedError, match=r"still served\n"):
        aliases.roll_back(session, "candidate", Rollback(version=2), "operator", signed=True)
    version_keys.revoke(session, FINGERPRINT)
    with pytest.raises(RefusedError, match="version 3 is not signed"):
        move(3)


def test_an_alias_points_to_no_version_that_is_not_served(session: Session, versions: list[VersionRow]) -> None:
    versions[0].retired, versions[1].withheld = now(session), now(session)
    for number, reason in ((1, "retired"), (2, "withheld"), (9, "no version 9")):
        with pytest.raises(RefusedError, match=reason):
            promote(session, number)


def test_a_removed_alias_begins_anew_and_its_history_stays(session: Session, versions: list[VersionRow]) -> None:
    promote(session, 1)
    promote(session, 2)
    aliases.remove(session, CHAMPION, "operator, token 1")
    aliases.remove(session, CHAMPION, "operator, token 1")
    promote(session, 3)
    with pytest.raises(RefusedError, match="no earlier version"):
        back(session, 3)
    assert len(session.scalars(select(AliasMoveRow)).all()) == 4


def test_lost_domains_cause_a_warning_unless_withdrawn(session: Session, versions: list[VersionRow]) -> None:
    law, art = session.scalars(select(ExpertRow).order_by(ExpertRow.number))
    number = add_version(session, experts=[art.digest]).number

    def warned() -> list[str]:
        return aliases.promote(session, "candidate", Move(version=number), "operator", MOST, ()).warnings

    promote(session, 1, name="candidate")
    assert warned() == [f"version {number} lacks domains of version 1: law"]
    withdraw_expert(session, law, serve=True)
    promote(session, 1, name="candidate")
    assert warned() == []
