"""An owner decides who uses its expert and leaves in the end; a reader pulls its part, as the pages have it."""

import shutil
from pathlib import Path

import pytest

from support.federation import federation_of
from support.terminal import Shell
from support.transcripts import Part

pytestmark = pytest.mark.slow


def test_the_pages_on_readers(tmp_path: Path) -> None:
    with (
        federation_of(tmp_path, "law", "art") as made,
        Shell(tmp_path / "operator", **made.server.environment()) as operator,
        Shell(tmp_path / "law-owner", MOERGE_COORDINATOR=made.server.url) as owner,
        Shell(tmp_path / "reader") as reader,
    ):
        made.contribute(made.body())
        made.solve()
        made.operator.promote("champion", 1)
        owner.types(f"export MOERGE_TOKEN={made.members['law'].token}")
        with Part("docs/owners/grants.md", "Decide who uses your expert") as part:
            assert "the default" in owner.types(part.next("moerge expert grants"))
            later = {"2027-06-30": "2099-06-30"}
            said = owner.types(part.next("moerge expert grant law --to clinic", later))
            assert "Until now all readers could use law." in said

            with Part("docs/operators/owners.md", "Readers") as readers:
                token = operator.types(readers.next("moerge token add reader")).split()[-1]
                operator.types("moerge token add reader --name eve")
                assert "not made" not in operator.types(readers.next("moerge version parts champion --make"))
                assert "clinic until 2099-06-30" in operator.types(readers.next("moerge expert grants"))

            shutil.copy(made.server.home / "version-key.pub", reader.folder)
            with Part("docs/consumers/start.md", "Pull a version and keep it up to date") as pulled:
                there = {"https://moerge.example.org": made.server.url, "MOERGE_TOKEN=...": f"MOERGE_TOKEN={token}"}
                reader.types(pulled.next("export MOERGE_COORDINATOR", there))
                assert "version 1, " in reader.types(pulled.next("moerge pull champion my-model --key"))
                assert "as signed by key" in reader.types(pulled.next("moerge verify my-model --key"))

            said = owner.types(part.next("moerge expert revoke law --to clinic"))
            assert "Readers who may use it now: none." in said
            assert "revoked from" in owner.types(part.next("moerge expert grants --history"))

        with Part("docs/owners/grants.md", "What an end does") as part:
            part.names = {"FOLDER": "my-model"}
            assert "aren't granted to you: law" in reader.types(part.next("moerge verify"), status=1)
        said = reader.types("moerge pull champion my-model")
        assert "law leaves it" in said
        assert "the part with the experts that are granted to you: art" in said

        with Part("docs/owners/leave.md", "Leave a federation") as part:
            assert "law is withdrawn" in owner.types(part.next("moerge expert withdraw law"))
            assert "Removed" in owner.types(part.next("moerge expert purge law"))
