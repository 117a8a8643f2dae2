"""The body contribution: one counts for each expert, and its file serves even where it is kept."""

from pathlib import Path
from typing import Any

from moerge_workers.contributing import body
from moerge_workers.contributing.own_sums import Outcome
from support.models import texts
from support.stages import MemoryClient, context_of


def outcome(folder: Path, home: Path, client: MemoryClient, **given: Any) -> Outcome:
    with context_of(folder, home, client, body_contribution=True, **given) as context:
        return body.run(context)


def test_second_run_sends_nothing_and_more_documents_supersede(folder: Path, home: Path, client: MemoryClient) -> None:
    first = outcome(folder, home, client)
    assert outcome(folder, home, client) == first
    assert len(client.uploaded) == 1
    further = texts(home / "further.jsonl", 2, 20).read_text()
    with (home / "texts.jsonl").open("a") as out:
        out.write(further)
    second = outcome(folder, home, client)
    assert first.sent is not None
    assert second.sent is not None
    assert (first.sent.documents, second.sent.documents) == (40, 60)
    assert [row.digest for row in client.rows.values() if row.active] == [second.sent.digest]


def test_a_dry_run_sends_nothing_and_has_the_grams(folder: Path, home: Path, client: MemoryClient) -> None:
    result = outcome(folder, home, client, dry_run=True)
    assert result.sent is None
    assert result.file is not None
    assert result.file.is_file()
    assert client.uploaded == []
