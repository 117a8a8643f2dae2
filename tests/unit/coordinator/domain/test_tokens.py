"""Tokens: made for a time, rotated, revoked; one operator can always call."""

from datetime import timedelta

import pytest
from pydantic import ValidationError
from sqlalchemy.orm import Session

from moerge_coordinator.domain.tokens import ended, make_token, revoke_token, rotate_token
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.storage.tables import TokenRow, now
from moerge_proto.owners import NewToken, Role, RotateToken
from moerge_proto.problems import ProblemType
from support.rows import START, Clock

READER = NewToken(role=Role.READER, note="monitoring")


def how_ended(session: Session, id_: int) -> str | None:
    return ended(session.get_one(TokenRow, id_), now(session))


def test_a_token_is_valid_until_it_expires(session: Session, clock: Clock) -> None:
    token = make_token(session, READER.model_copy(update={"expires": START + timedelta(hours=1)}))
    clock.later(minutes=59)
    assert how_ended(session, token.id) is None
    clock.later(minutes=1)
    assert how_ended(session, token.id) == "the token expired on 2030-01-01 01:00 UTC"


@pytest.mark.parametrize("seconds", [0, -1])
def test_a_token_that_would_have_ended_already_is_refused(session: Session, seconds: int) -> None:
    with pytest.raises(RefusedError, match="not in the future") as caught:
        make_token(session, READER.model_copy(update={"expires": START + timedelta(seconds=seconds)}))
    assert caught.value.where == "expires"


def test_revoked_token_is_invalid_and_revocation_is_idempotent(session: Session, clock: Clock) -> None:
    token = make_token(session, READER)
    first = revoke_token(session, token.id)
    assert how_ended(session, token.id) == "the token was revoked on 2030-01-01 00:00 UTC"
    clock.later(days=1)
    assert revoke_token(session, token.id) == first


def test_rotated_token_is_replaced_with_the_original_lifetime(session: Session, clock: Clock) -> None:
    old = make_token(session, READER.model_copy(update={"expires": START + timedelta(days=30)}))
    clock.later(days=20)
    new = rotate_token(session, old.id, RotateToken())
    assert how_ended(session, old.id) == "the token was revoked on 2030-01-21 00:00 UTC"
    assert (new.role, new.note, new.expires) == (Role.READER, "monitoring", START + timedelta(days=50))
    assert new.secret != old.secret


def test_rotation_overlap_never_extends_the_old_token(session: Session, clock: Clock) -> None:
    old = make_token(session, READER)
    short = make_token(session, READER.model_copy(update={"expires": START + timedelta(seconds=10)}))
    for token in (old, short):
        rotate_token(session, token.id, RotateToken(overlap_seconds=60))
    clock.later(seconds=10)
    assert how_ended(session, old.id) is None
    assert how_ended(session, short.id) is not None
    clock.later(seconds=50)
    assert how_ended(session, old.id) == "the token expired on 2030-01-01 00:01 UTC"


def test_a_token_that_has_ended_is_not_rotated(session: Session) -> None:
    token = make_token(session, READER)
    revoke_token(session, token.id)
    with pytest.raises(RefusedError, match="revoked"):
        rotate_token(session, token.id, RotateToken())


def test_the_last_valid_operator_token_is_not_revoked(session: Session, clock: Clock) -> None:
    operator = NewToken(role=Role.OPERATOR)
    first = make_token(session, operator)
    second = make_token(session, operator.model_copy(update={"expires": START + timedelta(hours=1)}))
    third = make_token(session, operator)
    make_token(session, READER)
    revoke_token(session, third.id)
    clock.later(hours=2)
    with pytest.raises(RefusedError, match="last valid operator token") as caught:
        revoke_token(session, first.id)
    assert "make or rotate" in caught.value.todo
    revoke_token(session, second.id)  # it has expired, so nothing is lost
    successor = rotate_token(session, first.id, RotateToken())
    with pytest.raises(RefusedError, match="last valid operator token"):
        revoke_token(session, successor.id)


@pytest.mark.parametrize("expires", ["2999-01-01T00:00:00", "0001-01-01T00:00:00+23:00", "soon"])
def test_an_end_without_a_zone_or_out_of_range_is_refused(expires: str) -> None:
    with pytest.raises(ValidationError, match="expires"):
        NewToken.model_validate_json(f'{{"role": "reader", "expires": "{expires}"}}')


@pytest.mark.parametrize(
    ("new", "kind"),
    [
        (NewToken(role=Role.OWNER), ProblemType.INVALID_REQUEST),
        (NewToken(role=Role.READER, owner="firm"), ProblemType.INVALID_REQUEST),
        (NewToken(role=Role.OWNER, owner="nobody"), ProblemType.NOT_FOUND),
    ],
)
def test_only_an_owner_s_token_has_an_owner(session: Session, new: NewToken, kind: ProblemType) -> None:
    with pytest.raises(RefusedError) as caught:
        make_token(session, new)
    assert (caught.value.kind, caught.value.where) == (kind, "owner")
