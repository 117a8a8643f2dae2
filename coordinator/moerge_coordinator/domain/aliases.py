"""Aliases: movable names for versions, with their history."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from moerge.versions.compare import lost_domains
from moerge_coordinator.domain import versions
from moerge_coordinator.domain.ports import Comparisons
from moerge_coordinator.problems import RefusedError, existing
from moerge_coordinator.settings import Settings
from moerge_coordinator.storage.messages import message
from moerge_coordinator.storage.messages import versions as version_view
from moerge_coordinator.storage.tables import AliasMoveRow, AliasRow, VersionRow, notify, now, tell
from moerge_proto.digests import Name
from moerge_proto.problems import ProblemType
from moerge_proto.versions import CHAMPION, Alias, Move, PromotionCheck, Rollback


def find(session: Session, name: str) -> AliasRow:
    return existing(_named(session, name), f"alias {name!r}", "name", "run: moerge version list")


def _named(session: Session, name: str) -> AliasRow | None:
    return session.scalar(select(AliasRow).where(AliasRow.name == name))


def promote(session: Session, name: Name, move: Move, who: str, settings: Settings, comparisons: Comparisons) -> Alias:
    """Points an alias to a served version. Idempotent.

    `champion` needs an override if a score is worse by more than the settings allow, and may have to be signed.
    """
    version, row = versions.find_served(session, move.version, "version"), _named(session, name)
    if row is not None and row.version == version.number:
        return message(Alias, row)
    before = None if row is None else versions.find(session, row.version)
    if name == CHAMPION and (refusal := _refusal(session, version, settings)) is not None:
        todo = f"run: moerge version sign {version.number}"
        raise RefusedError(ProblemType.NOT_PROMOTABLE, refusal, where="version", todo=todo)
    falls, warnings = _compared(session, version, before, settings, comparisons if name == CHAMPION else ())
    view = version_view(session)
    if before is not None and (lost := lost_domains(view(before), view(version))):
        warnings.append(f"version {version.number} lacks domains of version {before.number}: {', '.join(lost)}")
    if falls and not move.override:
        limits = f"{settings.promotion_max_fall:g} points or {settings.promotion_max_errors:g} standard errors"
        problem = f"version {version.number} is worse by more than {limits}: {'; '.join(falls)}"
        todo = "see moerge version table; promote another version, or give a reason (`override`)"
        raise RefusedError(ProblemType.NOT_PROMOTABLE, problem, where="override", todo=todo)
    override = move.override if falls else None
    alias = _point(session, row, name, version.number, kind="promote", who=who, note=move.note, override=override)
    return alias.model_copy(update={"warnings": warnings})


def check(session: Session, number: int, settings: Settings, comparisons: Comparisons) -> PromotionCheck:
    """The comparison that `promote` would make to point `champion` to a served version; empty if it does already."""
    version, row = versions.find_served(session, number), _named(session, CHAMPION)
    if row is not None and row.version == version.number:
        return PromotionCheck(refusal=None, falls=[], warnings=[])
    before = None if row is None else versions.find(session, row.version)
    falls, warnings = _compared(session, version, before, settings, comparisons)
    return PromotionCheck(refusal=_refusal(session, version, settings), falls=falls, warnings=warnings)


def _refusal(session: Session, version: VersionRow, settings: Settings) -> str | None:
    """Why no override makes it the champion; None if one may."""
    if not settings.promotion_signed or _signed(session, version):
        return None
    return f"version {version.number} is not signed by a key that counts, which promotion_signed requires"


def _signed(session: Session, version: VersionRow) -> bool:
    view = version_view(session)(version)
    return view.key is not None and view.key_revoked is None


def _compared(
    session: Session,
    version: VersionRow,
    champion: VersionRow | None,
    settings: Settings,
    comparisons: Comparisons,
) -> tuple[list[str], list[str]]:
    """The falls against the champion and the warnings of all comparisons."""
    found = [compare(session, version, champion, settings) for compare in comparisons]
    return [fall for falls, _ in found for fall in falls], [line for _, warnings in found for line in warnings]


def _point(session: Session, row: AliasRow | None, name: str, version: int, **move: str | None) -> Alias:
    """Moves the alias; `move` has the other columns of its history."""
    when, previous = now(session), None if row is None else row.version
    row = row or AliasRow(name=name)
    row.version, row.moved = version, when
    session.add_all([row, AliasMoveRow(alias=name, version=version, previous=previous, created=when, **move)])
    session.flush()
    tell(session, f"version {version} is {name}{', rolled back' if move['kind'] == 'rollback' else ''}")
    notify(session, "alias.moved", alias=row.number, version=version)
    return message(Alias, row)


def roll_back(session: Session, name: Name, back: Rollback, who: str, *, signed: bool = False) -> Alias:
    """Reverts the last promotion, if `back.version` is the alias' present version. Idempotent.

    `signed`: whether `champion` must be signed.
    """
    row, signed = find(session, name), signed and name == CHAMPION
    moves = list(session.scalars(select(AliasMoveRow).where(AliasMoveRow.alias == name).order_by(AliasMoveRow.number)))
    if row.version != back.version:
        if moves[-1].kind == "rollback" and moves[-1].previous == back.version:
            return message(Alias, row)
        problem = f"the alias {name!r} points to version {row.version}, not {back.version}"
        raise RefusedError(ProblemType.CONFLICT, problem, where="version", todo="check the alias, then try again")
    for number in reversed(_promoted(moves)[:-1]):
        version = versions.find(session, number)
        counts = not signed or _signed(session, version)
        if version.retired is None and version.withheld is None and counts:
            return _point(session, row, name, number, kind="rollback", who=who, note=back.note)
    problem = f"the alias {name!r} has no earlier version that is still served{' and signed' if signed else ''}"
    raise RefusedError(ProblemType.CONFLICT, problem, where="name", todo="promote another version")


def _promoted(moves: list[AliasMoveRow]) -> list[int]:
    """The promotions without a rollback, oldest first; the last is the alias' present version."""
    stack: list[int] = []
    for move in moves:
        if move.version is None:
            stack = []
        elif move.kind == "promote":
            stack.append(move.version)
        else:
            while stack and stack[-1] != move.version:
                stack.pop()
    return stack


def remove(session: Session, name: Name, who: str) -> None:
    """Removes an alias; its history stays. Idempotent."""
    if (row := _named(session, name)) is not None:
        session.add(AliasMoveRow(alias=name, version=None, previous=row.version, kind="remove", who=who, note=""))
        session.delete(row)
        tell(session, f"the alias {name} is removed")
