"""The demands on workers."""

from sqlalchemy.orm import Session

from moerge_coordinator.domain.demands import demands
from moerge_coordinator.storage.tables import now
from moerge_proto.demands import Demands
from support.rows import add_body, add_contribution, add_expert, add_version

NONE = Demands.of(None, None)


def test_body_is_demanded_while_it_is_current(session: Session) -> None:
    assert demands(session, {}).on("law-owner", "0" * 64) == NONE
    for name in ("seed", "other"):
        body = add_body(session, name)
        assert demands(session, {}).body == body.digest


def test_each_expert_has_its_newest_served_version(session: Session) -> None:
    body, kept = add_body(session), dict[int, list[str]]()
    law, art = add_expert(session, "law"), add_expert(session, "art")

    def versions() -> list[int | None]:
        found = demands(session, kept)
        assert found == demands(session, {})
        return [found.on(row.owner, row.parts_of).version for row in (law, art)]

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
    assert demands(session, kept).on(law.owner, art.parts_of).version is None, "another owner's expert"
    assert demands(session, kept).on(law.owner, law.digest).version is None, "a worker names its dense expert"


def test_equal_demands_have_equal_tags() -> None:
    assert Demands.of("1" * 64, 2) == Demands.of("1" * 64, 2)
    assert len({Demands.of(body, version).tag for body in (None, "1" * 64) for version in (None, 1)}) == 4
