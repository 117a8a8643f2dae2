"""Law 1 for evaluations: neither their sums, nor the difference of two, are over fewer documents than the policy's."""

from contextlib import closing
from pathlib import Path

import pytest

from moerge_workers.computing.held_out import Counted, HeldOut, NotNowError
from moerge_workers.outgoing.ledger import Ledger, Sent
from support.stages import MemoryClient, run_of


def counted(folder: Path, home: Path, client: MemoryClient, *, sent: bool = False) -> Counted:
    """The documents that may be scored; `sent`: their evaluation then leaves."""
    with (
        run_of(folder, home, client, held_out_share=0.5) as run,
        closing(Ledger(home / "evaluations" / "ledger.sqlite")) as ledger,
    ):
        result = HeldOut(run.documents.settings, run.documents.data, run.documents.events, ledger).counted()
        if sent:
            ledger.send(Sent("file", "0" * 64, result.documents, result.tokens, "1" * 64), "", replace=True)
    return result


def kept(home: Path, documents: slice) -> None:
    path = home / "texts.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[documents]))


def test_few_new_documents_are_excluded_until_sufficient(folder: Path, home: Path, client: MemoryClient) -> None:
    every = (home / "texts.jsonl").read_text()
    kept(home, slice(0, 36))
    first = counted(folder, home, client, sent=True)
    (home / "texts.jsonl").write_text(every)
    again = counted(folder, home, client)
    assert (again.documents, again.digest, again.earlier) == (first.documents, first.digest, True)
    with (home / "texts.jsonl").open("a") as out:
        out.write(every.replace('"text": "', '"text": "another '))
    assert not counted(folder, home, client).earlier


def test_too_few_held_out_or_removed_documents_are_refused(folder: Path, home: Path, client: MemoryClient) -> None:
    counted(folder, home, client, sent=True)
    kept(home, slice(0, 37))
    with pytest.raises(NotNowError, match="added or removed since the last evaluation"):
        counted(folder, home, client)
    kept(home, slice(0, 3))
    (home / "evaluations" / "ledger.sqlite").unlink()
    with pytest.raises(NotNowError, match="held-out documents; the policy's min_documents is 5"):
        counted(folder, home, client)
