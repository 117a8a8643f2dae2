"""The owner's answer at a terminal, and the record of what left."""

import os
import pty
import sqlite3
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import get_args

import pytest

from moerge.fits.parts import write_parts
from moerge.models.dense_files import DenseFiles
from moerge_workers.outgoing import version_limit
from moerge_workers.outgoing.history import FILE, History
from moerge_workers.outgoing.kinds import OUTGOING
from moerge_workers.outgoing.outbox import Outbox
from moerge_workers.policy import Kind
from support.models import expert
from support.outbox import item_of, outbox_of


@pytest.mark.parametrize(("typed", "may"), [("y", True), ("n", False)])
def test_owner_is_asked_once_and_the_answer_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str, may: bool
) -> None:
    folder = expert(tmp_path / "law", 1)
    with closing(History(tmp_path)) as history:
        outbox = outbox_of(history, folder, mode="ask")
        item = item_of("expert", folder)
        keyboard, terminal = pty.openpty()
        with os.fdopen(terminal) as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            os.write(keyboard, f"{typed}\n".encode())
            assert outbox.may_leave(item) is may
            assert outbox.may_leave(item) is may  # there is nothing more to read
        os.close(keyboard)
    shown = capsys.readouterr()
    assert "model.safetensors" in shown.err
    assert "What this reveals" in shown.err


def test_every_kind_of_outgoing_data_is_described() -> None:
    assert set(OUTGOING) == set(get_args(Kind))


def test_a_retry_is_no_second_sending_and_rows_stay(tmp_path: Path) -> None:
    with closing(History(tmp_path)) as history:
        outbox: Outbox = outbox_of(history, tmp_path)
        one, other = item_of("router", tmp_path, "1" * 64), item_of("router", tmp_path, "2" * 64)
        with pytest.raises(OSError, match="no network"), outbox.sending(one):
            raise OSError("no network")
        assert [sending.became for sending in history.sendings()] == [""]
        with outbox.sending(one):
            pass
        with outbox.sending(other, [one.digest]):
            pass
        outbox.withdrawn(other.digest)
        with outbox.sending(one):  # it had lost its place, so this is another sending
            pass
        became = [(sending.item.digest[0], sending.became) for sending in history.sendings()]
        assert became == [("1", "superseded"), ("2", "withdrawn"), ("1", "arrived")]
    with closing(sqlite3.connect(tmp_path / FILE)) as database, pytest.raises(sqlite3.IntegrityError, match="stay"):
        database.execute("DELETE FROM events")


def test_the_budget_has_the_evaluations_of_thirty_days(tmp_path: Path) -> None:
    days = [0]
    first, second, third = (item_of("evaluation", tmp_path, digit * 64) for digit in "123")
    with closing(History(tmp_path, lambda: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=days[0]))) as history:
        outbox = outbox_of(history, tmp_path, evaluation_sums=True, versions_per_month=2)
        for day, item in ((0, first), (10, second)):
            days[0] = day
            assert version_limit.reveals(history, outbox.settings.policy, item) is None
            with outbox.sending(item):
                pass
        for days[0], exceeds in ((29, True), (31, False)):
            assert (version_limit.reveals(history, outbox.settings.policy, third) is not None) is exceeds
            assert version_limit.reveals(history, outbox.settings.policy, first) is None, "it left before"


def test_parts_are_described_without_attention(tmp_path: Path) -> None:
    own = DenseFiles(expert(tmp_path / "law", 1))
    _, parts = OUTGOING["expert"](write_parts(own, tmp_path / "parts"))
    assert "not: the expert's attention" in str(parts)
    assert "of a tied model the head is the embedding" in str(parts)
