"""Owners: one owner a domain, one key an owner, and join requests that are their own."""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge_coordinator.domain import owners
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.storage.tables import OwnerRow, TokenRow
from moerge_proto.owners import Approval, Role
from moerge_proto.problems import ProblemType
from moerge_proto.signatures import JoinRequest, Rotation
from support.rows import START


@pytest.fixture
def key() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.generate()


def request_of(key: Ed25519PrivateKey) -> JoinRequest:
    return JoinRequest.make(key, "firm", ["law"], START)


def test_domain_has_one_owner_and_adding_is_idempotent(session: Session) -> None:
    firm = owners.add(session, "firm", ["law", "tax"])
    assert owners.add(session, "firm", ["tax", "law"]) == firm
    with pytest.raises(RefusedError, match="already has other domains"):
        owners.add(session, "firm", ["law"])
    with pytest.raises(RefusedError, match="domain 'law' belongs to 'firm'"):
        owners.add(session, "other", ["law"])


def test_an_identity_speaks_for_its_own_domains(session: Session) -> None:
    owners.add(session, "firm", ["law"])
    firm = owners.identity(session, Role.OWNER, "firm")
    owners.require_own_domain(firm, "law")
    with pytest.raises(RefusedError, match="does not belong to owner 'firm'"):
        owners.require_own_domain(firm, "art")
    with pytest.raises(RefusedError, match="has no owner"):
        owners.own_name(owners.identity(session, Role.OPERATOR, None))


def test_approved_owner_gets_the_requested_key_and_a_token(session: Session, key: Ed25519PrivateKey) -> None:
    request = request_of(key)
    approved = owners.approve(session, "firm", Approval(request=request))
    assert [item.public_key for item in approved.owner.keys] == [request.public_key]
    assert (approved.token.role, approved.token.owner) == (Role.OWNER, "firm")
    for name, other, where in (
        ("other", request, "request.owner"),
        ("firm", request.model_copy(update={"domains": ["law", "art"]}), "request.signature"),
    ):
        with pytest.raises(RefusedError) as caught:
            owners.approve(session, name, Approval(request=other))
        assert caught.value.where == where


def test_repeated_approval_issues_only_a_new_token(session: Session, key: Ed25519PrivateKey) -> None:
    first, second = (owners.approve(session, "firm", Approval(request=request_of(key))) for _ in range(2))
    assert first.owner == second.owner
    assert first.token.secret != second.token.secret


def test_one_key_is_not_two_owners_and_a_domain_not_either(session: Session, key: Ed25519PrivateKey) -> None:
    owners.approve(session, "firm", Approval(request=request_of(key)))
    stranger = Ed25519PrivateKey.generate()
    for request, where in (
        (JoinRequest.make(key, "second", ["tax"], START), "request.public_key"),
        (JoinRequest.make(stranger, "third", ["law"], START), "domains"),
        (JoinRequest.make(key, "firm", ["art"], START), "name"),
    ):
        with pytest.raises(RefusedError) as caught, session.begin_nested():
            owners.approve(session, request.owner, Approval(request=request))
        assert (caught.value.kind, caught.value.where) == (ProblemType.CONFLICT, where)
    assert session.scalars(select(OwnerRow.name)).all() == ["firm"]


def test_key_replacement_requires_operator_and_revokes_old_key(session: Session, key: Ed25519PrivateKey) -> None:
    owners.approve(session, "firm", Approval(request=request_of(key)))
    again = request_of(Ed25519PrivateKey.generate())
    with pytest.raises(RefusedError, match="with another key"):
        owners.approve(session, "firm", Approval(request=again))
    replaced = owners.approve(session, "firm", Approval(request=again, replace=True))
    assert [item.revoked is None for item in replaced.owner.keys] == [False, True]
    first = Approval(request=request_of(key), replace=True)
    with pytest.raises(RefusedError, match="keys can't be reused"):
        owners.approve(session, "firm", first)


def test_a_rotation_needs_both_keys_and_the_owner_s_own_token(session: Session, key: Ed25519PrivateKey) -> None:
    owners.approve(session, "firm", Approval(request=request_of(key)))
    rotation = Rotation.make(key, Ed25519PrivateKey.generate(), "firm")
    with pytest.raises(RefusedError, match="of owner 'firm', but the token of 'other'"):
        owners.rotate(session, "other", rotation)
    rotated = owners.rotate(session, "firm", rotation)
    assert rotated.keys[-1].public_key == rotation.new_key
    assert owners.rotate(session, "firm", rotation) == rotated, "the same again changes nothing"
    back = Rotation.make(key, Ed25519PrivateKey.generate(), "firm")
    with pytest.raises(RefusedError, match="not the active key"):
        owners.rotate(session, "firm", back)


def test_revoking_ends_keys_and_tokens(session: Session, key: Ed25519PrivateKey) -> None:
    owners.approve(session, "firm", Approval(request=request_of(key)))
    revoked = owners.revoke(session, "firm")
    assert all(item.revoked is not None for item in revoked.keys)
    assert all(row.revoked is not None for row in session.scalars(select(TokenRow)))
    with pytest.raises(RefusedError, match="no owner 'other'"):
        owners.revoke(session, "other")
