"""Lines of Python by room, and the budget of each in budgets.toml: what exceeds it pays in the same change."""

import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUDGETS = Path(__file__).with_name("budgets.toml")
WHOLE = "tests", "services/moerge_lab", "proto/moerge_proto"
PARTS = "services/moerge", "workers/moerge_workers", "coordinator/moerge_coordinator"


def room_of(path: Path) -> str:
    """The whole package, or a package's folder, or the package for its own modules."""
    name = path.relative_to(ROOT).as_posix()
    for place in WHOLE:
        if name.startswith(f"{place}/"):
            return place
    package = next(place for place in PARTS if name.startswith(f"{place}/"))
    inner = name.removeprefix(f"{package}/").partition("/")
    return f"{package}/{inner[0]}" if inner[1] else package


def lines() -> Counter[str]:
    result = Counter[str]()
    for place in (*WHOLE, *PARTS):
        for path in (ROOT / place).rglob("*.py"):
            result[room_of(path)] += len(path.read_text(encoding="utf-8").splitlines())
    return result


def budgets(table: str) -> dict[str, int]:
    result: dict[str, int] = tomllib.loads(BUDGETS.read_text(encoding="utf-8"))[table]
    return result


def test_no_room_exceeds_its_budget() -> None:
    """If one does, remove as much elsewhere in it, or move a budget from another room."""
    found, allowed = lines(), budgets("rooms")
    for room, number in sorted(found.items()):
        print(f"{room:<45}{number:>7,}{allowed.get(room, 0):>8,}")
    assert found.keys() == allowed.keys()
    assert {room: number for room, number in found.items() if number > allowed[room]} == {}


def test_the_totals_are_the_sums_of_the_rooms() -> None:
    house = budgets("rooms")
    tests, laboratory = house.pop("tests"), house.pop("services/moerge_lab")
    assert budgets("totals") == {"house": sum(house.values()), "laboratory": laboratory, "tests": tests}
