"""The demands on workers."""

from sqlalchemy.orm import Session

from moerge_coordinator.domain.demands import demands
from moerge_coordinator.storage.tables import now
from moerge_proto.demands import Demands
from support.rows import add_body, add_contribution, add_expert, add_version

NONE = Demands.of(None, None)


def test_body_is_demanded_while_it_is_current_and_not_retired(session: Session) -> None:
    assert demands(session, {}).on("law-owner", "0" * 64) == NONE
    law = add_expert(session, "law")
    first = add_body(session, [law])
    assert demands(session, {}).body == first.digest
    second = add_body(session, [law, add_expert(session, "art")])
    assert demands(session, {}).body == second.digest
    second.retired = now(session)
    session.flush()
    assert demands(session, {}).body is None


def test_each_expert_has_its_newest_served_version(session: Session) -> None:
    law, art = add_expert(session, "law"), add_expert(session, "art")
    body, kept = add_body(session, [law, art]), dict[int, list[str]]()

    def versions() -> list[int | None]:
        found = demands(session, kept)
        assert found == demands(session, {})
        return [found.on(row.owner, row.digest).version for row in (law, art)]

    assert versions() == [None, None]
    add_contribution(session, law, body)
    first = add_version(session)
    assert versions() == [first.number, None]
    add_contribution(session, art, body)
    second = add_version(session)
    assert versions() == [second.number, second.number]
    second.withheld = now(session)
    session.flush()
    assert versions() == [first.number, None]
    second.withheld, first.retired = None, now(session)
    session.flush()
    assert versions() == [second.number, second.number]
    assert demands(session, kept).on(law.owner, art.digest).version is None, "another owner's expert"


def test_parts_count_as_their_dense_expert(session: Session) -> None:
    body, dense = add_body(session, []), "d" * 64
    parts = add_expert(session, "law", (dense, body.digest))
    add_contribution(session, parts, body)
    version = add_version(session)
    assert demands(session, {}).on(parts.owner, dense).version == version.number
    assert demands(session, {}).on(parts.owner, parts.digest).version is None


def test_equal_demands_have_equal_tags() -> None:
    assert Demands.of("1" * 64, 2) == Demands.of("1" * 64, 2)
    assert len({Demands.of(body, version).tag for body in (None, "1" * 64) for version in (None, 1)}) == 4
