"""The folder of a coordinator: it is made once, and backed up without PostgreSQL's rows."""

from pathlib import Path

import pytest

from moerge.errors import MoergeError
from moerge_coordinator.operation.backups import back_up
from moerge_coordinator.operation.home import initialise
from moerge_coordinator.settings import Settings
from support.federation import SILENT


def test_a_home_is_made_once(tmp_path: Path) -> None:
    token = initialise(tmp_path / "home")
    assert token.secret.startswith("moerge_")
    with pytest.raises(MoergeError, match="already a coordinator's home"):
        initialise(tmp_path / "home")
    assert (tmp_path / "home").stat().st_mode & 0o777 == 0o700


def test_a_postgresql_database_is_left_to_its_own_tools(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, database="postgresql://moerge:secret@db/moerge")
    with pytest.raises(MoergeError) as caught:
        back_up(settings, tmp_path / "backup", SILENT)
    assert "pg_dump --format=custom --file=moerge.dump" in caught.value.todo
    assert "secret" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
