"""The public log's chain and its head."""

from datetime import UTC, datetime

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key

from moerge_proto.public_log import LogEntry, LogHead, extended, require_once
from moerge_proto.version_signatures import public_pem


def log(*digests: str) -> list[LogEntry]:
    """A chain of versions with these digests."""
    head, result = LogHead(), list[LogEntry]()
    for number, digest in enumerate(digests, 1):
        when = datetime(2026, 1, number, tzinfo=UTC)
        entry = LogEntry(
            number=number, kind="version", name=str(number), digest=digest * 64, created=when, previous=head.hash
        )
        result.append(entry)
        head = LogHead(size=number, hash=entry.hash)
    return result


def test_head_names_every_entry_and_survives_json() -> None:
    entries = log("a", "b", "c")
    head = extended(LogHead(), entries)
    assert head.size == 3
    assert extended(extended(LogHead(), entries[:1]), entries[1:]) == head
    assert extended(LogHead(), [LogEntry.model_validate_json(entry.model_dump_json()) for entry in entries]) == head
    assert extended(LogHead(), log("a", "f", "c")).hash != head.hash
    assert LogHead.parse(f" {head.line}\n") == head


@pytest.mark.parametrize("which", [[0, 2], [1, 2], [0, 1, 1], [1, 0]])
def test_missing_repeated_and_turned_entries_do_not_follow(which: list[int]) -> None:
    entries = log("a", "b", "c")
    with pytest.raises(ValueError, match="doesn't follow"):
        extended(LogHead(), [entries[place] for place in which])


def test_a_changed_entry_is_not_followed_by_the_next() -> None:
    first, *others = log("a", "b")
    with pytest.raises(ValueError, match=r"entry 2 \(version 2\) doesn't follow entry 1"):
        extended(LogHead(), [first.model_copy(update={"name": "7"}), *others])


def test_a_publication_has_one_entry() -> None:
    entries = log("a", "b", "c")
    require_once(entries)
    again = entries[2].model_copy(update={"name": "1"})
    extended(LogHead(), [*entries[:2], again])
    require_once([*entries[:2], again.model_copy(update={"kind": "head"})])
    with pytest.raises(ValueError, match="entry 3 publishes version 1 again"):
        require_once([*entries[:2], again])


@pytest.mark.parametrize("line", ["", "3", f"3:{'a' * 63}", f"-1:{'a' * 64}", f"3:{'A' * 64}"])
def test_other_lines_are_no_heads(line: str) -> None:
    with pytest.raises(ValueError, match="not the head of a log"):
        LogHead.parse(line)


def test_a_signature_is_of_one_head_by_one_key() -> None:
    head, other = (generate_private_key(SECP256R1()) for _ in range(2))
    signed = extended(LogHead(), log("a")).signed(head)
    signed.require_valid()
    LogHead().require_valid()  # without a key it is unsigned
    changes: list[dict[str, object]] = [
        {"size": 2},
        {"hash": "0" * 64},
        {"key": public_pem(other)},
        {"key": None},
        {"signature": None},
        {"key": "no key"},
    ]
    for change in changes:
        with pytest.raises(ValueError, match="not by its key"):
            signed.model_copy(update=change).require_valid()
