"""Law 4 at home: a document that was sent is in no later file, whatever the order in which documents come."""

import sqlite3
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moerge.errors import MoergeError
from moerge_proto.digests import sha256_hex
from moerge_workers.outgoing.ledger import Ledger, Sent

DOCUMENTS = st.lists(st.sampled_from([bytes([n]) * 32 for n in range(6)]), max_size=12)


def new(ledger: Ledger, documents: list[bytes]) -> Counter[bytes]:
    ledger.begin()
    return Counter(mac for mac in documents if ledger.see(mac))


def file(number: int) -> Sent:
    return Sent(f"{number}.safetensors", sha256_hex(bytes([number])), number, 10 * number, "0" * 64)


@settings(max_examples=30, deadline=None)
@given(st.lists(DOCUMENTS, min_size=1, max_size=5))
def test_law_4_document_copy_is_new_once_until_one_is_removed(
    tmp_path_factory: pytest.TempPathFactory, rounds: list[list[bytes]]
) -> None:
    path = tmp_path_factory.mktemp("ledger") / "a.sqlite"
    sent: Counter[bytes] = Counter()
    for number, documents in enumerate(rounds):
        ledger = Ledger(path)  # as after a kill: only the file is left
        assert new(ledger, documents) == Counter(documents) - sent
        gone = sent - Counter(documents)
        assert (ledger.gone(), ledger.added()) == (gone.total(), (Counter(documents) - sent).total())
        ledger.send(file(number), "how", replace=bool(gone))
        sent = Counter(documents)
        assert ledger.gone() == 0
        ledger.close()


@settings(max_examples=30, deadline=None)
@given(DOCUMENTS, DOCUMENTS, DOCUMENTS, st.booleans())
def test_documents_added_between_readings_are_not_included(
    tmp_path_factory: pytest.TempPathFactory,
    sent: list[bytes],
    planned: list[bytes],
    later: list[bytes],
    everything: bool,
) -> None:
    ledger = Ledger(tmp_path_factory.mktemp("ledger") / "a.sqlite")
    new(ledger, sent)
    ledger.send(file(1), "how", replace=False)
    ledger.begin(everything=everything)
    wanted = Counter(mac for mac in planned if ledger.see(mac))
    ledger.begin(everything=everything, again=True)
    assert Counter(mac for mac in [*planned, *later] if ledger.see(mac)) == wanted
    ledger.send(file(2), "how", replace=everything)
    assert new(ledger, [*planned, *later]) == Counter(later)
    ledger.close()


def test_reading_without_a_sent_file_changes_nothing(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "a.sqlite")
    assert new(ledger, [b"a", b"b"]).total() == 2
    ledger.close()
    ledger = Ledger(tmp_path / "a.sqlite")
    assert new(ledger, [b"b", b"a"]).total() == 2
    assert (ledger.files(), ledger.next()) == ([], 1)
    ledger.close()


def test_replaced_files_are_listed(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "a.sqlite")
    for number, replace in enumerate([False, False, True]):
        new(ledger, [b"a"])
        ledger.send(file(number), "one way", replace=replace)
    assert (ledger.files(), ledger.files(replaced=True)) == ([file(2)], [file(0), file(1)])
    assert ledger.made_as("one way")
    assert not ledger.made_as("another")
    ledger.forget()
    assert (ledger.files(), ledger.next(), ledger.gone()) == ([], 4, 0)
    assert new(ledger, [b"a"]).total() == 1
    assert ledger.made_as("another")
    ledger.close()


def test_what_is_no_ledger_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.sqlite").write_bytes(b"no database, but longer than a header of SQLite's would be" * 99)
    with pytest.raises(MoergeError, match="not a ledger") as caught:
        Ledger(tmp_path / "a.sqlite")
    assert caught.value.where == str(tmp_path / "a.sqlite")


def test_law_1_a_ledger_holds_no_text(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "a.sqlite")
    new(ledger, [b"m" * 32])
    ledger.send(file(1), "how", replace=False)
    ledger.close()
    with sqlite3.connect(tmp_path / "a.sqlite") as database:
        assert database.execute("SELECT mac FROM sent").fetchall() == [(b"m" * 16,)]
    database.close()
