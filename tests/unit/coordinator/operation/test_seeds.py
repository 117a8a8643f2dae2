"""Seeds: registered once, current again on request, verified and backed up like all else."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

import pytest
import torch
from safetensors.torch import load_file, save_file
from sqlalchemy import select
from typer.testing import CliRunner

from moerge.blobs.local import LocalBlobs
from moerge.bodies.merge import MergedBody
from moerge.errors import CheckpointError, MoergeError
from moerge.merging.local_lineages import local_body
from moerge.models.expert_folder import DenseExpert
from moerge.models.families.family import FINAL_NORM
from moerge_coordinator.commands import app
from moerge_coordinator.operation.backups import back_up, restore
from moerge_coordinator.operation.findings import Finding
from moerge_coordinator.operation.home import initialise
from moerge_coordinator.operation.seeds import register
from moerge_coordinator.operation.verify import verify
from moerge_coordinator.problems import RefusedError
from moerge_coordinator.settings import read_settings
from moerge_coordinator.storage.database import Database, open_database
from moerge_coordinator.storage.tables import BodyRow
from moerge_proto.messages import FileEntry
from support.federation import SILENT
from support.models import seed_model
from support.rows import add_body


@pytest.fixture(scope="module", params=[False, True], ids=["untied", "tied"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return seed_model(tmp_path_factory.mktemp("model") / "small", tie_word_embeddings=request.param)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    initialise(tmp_path / "home")
    return tmp_path / "home"


@pytest.fixture
def database(home: Path) -> Iterator[Database]:
    with closing(open_database(read_settings(home).database)) as database:
        yield database


def registered(home: Path, database: Database, model: Path) -> MergedBody:
    return register(database, LocalBlobs(home / "blobs"), str(model), SILENT)


def current(database: Database) -> list[str]:
    with database.reading() as session:
        return list(session.scalars(select(BodyRow.digest).where(BodyRow.current)))


def licenses(database: Database) -> list[str]:
    with database.reading() as session:
        return list(session.scalars(select(BodyRow.license)))


def findings(home: Path, database: Database) -> list[Finding]:
    return verify(read_settings(home), database, LocalBlobs(home / "blobs"), SILENT)


def changed(model: Path, folder: Path, name: str, value: float) -> Path:
    """A copy of the model with one element changed."""
    folder.mkdir()
    for path in model.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    tensors = load_file(model / "model.safetensors")
    tensors[name].view(-1)[0] = value
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_registered_seed_is_current_until_another_body_is(home: Path, database: Database, model: Path) -> None:
    body = registered(home, database, model)
    assert body.source == "small"
    assert {"body.safetensors", "config.json", "head.safetensors", "tokenizer.json"} <= {
        file.name for file in body.files
    }
    with database.transaction("test") as session:
        other = add_body(session, "other")
    assert current(database) == [other.digest]
    assert registered(home, database, model) == body
    assert current(database) == [body.digest]


def test_seed_with_another_head_is_refused(home: Path, database: Database, model: Path, tmp_path: Path) -> None:
    body = registered(home, database, model)
    with pytest.raises(RefusedError, match=r"small has the same body, with another head\.safetensors"):
        registered(home, database, changed(model, tmp_path / "other", FINAL_NORM, 3.0))
    other = registered(home, database, changed(model, tmp_path / "third", "model.embed_tokens.weight", 3.0))
    assert other.digest != body.digest
    assert current(database) == [other.digest]


def test_seed_has_the_names_of_a_merge_on_one_machine(
    home: Path, database: Database, model: Path, tmp_path: Path
) -> None:
    body = registered(home, database, model)
    local = local_body([], tmp_path / "body", "seed", base=DenseExpert("base", model))
    assert (local.digest, local.seed_digest) == (body.digest, body.seed)
    assert body.seed is not None


def test_seed_with_another_tokenizer_is_refused(home: Path, database: Database, model: Path, tmp_path: Path) -> None:
    registered(home, database, model)
    other = changed(model, tmp_path / "other", FINAL_NORM, float(load_file(model / "model.safetensors")[FINAL_NORM][0]))
    (other / "tokenizer_config.json").write_text("{}")
    with pytest.raises(RefusedError, match=r"small has the same body, with another tokenizer_config\.json"):
        registered(home, database, other)


def test_licence_of_a_seed_is_its_last_named_one(home: Path, database: Database, model: Path) -> None:
    blobs = LocalBlobs(home / "blobs")
    for given, kept in (
        ("unknown", "unknown"),
        ("MIT", "MIT"),
        ("Apache-2.0", "Apache-2.0"),
        ("unknown", "Apache-2.0"),
    ):
        register(database, blobs, str(model), SILENT, given)
        assert licenses(database) == [kept]
    with pytest.raises(MoergeError, match="'see the README' is not the name of a licence"):
        register(database, blobs, str(model), SILENT, "see the README")


def test_seed_that_is_no_model_leaves_no_body(home: Path, database: Database, model: Path, tmp_path: Path) -> None:
    (changed(model, tmp_path / "silent", FINAL_NORM, 1.0) / "tokenizer.json").unlink()
    for folder, problem in (
        (tmp_path / "nowhere", "no such folder"),
        (tmp_path / "silent", "expected tokenizer.json or tokenizer.model; found neither"),
        (changed(model, tmp_path / "other", FINAL_NORM, torch.inf), "contains NaN or infinity"),
    ):
        with pytest.raises(CheckpointError, match=problem):
            registered(home, database, folder)
    assert current(database) == []
    assert list(LocalBlobs(home / "blobs").digests()) == []


class Swept(LocalBlobs):
    """A store that another process sweeps while a file is written."""

    def put(self, name: str, write: Callable[[BinaryIO], str]) -> FileEntry:
        def swept(out: BinaryIO) -> str:
            self.sweep()
            return write(out)

        return super().put(name, swept)


def test_seed_swept_by_a_starting_coordinator_is_registered_again(home: Path, database: Database, model: Path) -> None:
    with pytest.raises(MoergeError, match="the file was removed before it was complete") as caught:
        register(database, Swept(home / "blobs"), str(model), SILENT)
    assert caught.value.todo == "run it again"
    registered(home, database, model)


def other_exponents(row: BodyRow) -> None:
    row.exponents = [row.exponents[0] - 1, *row.exponents[1:]]


def other_config(row: BodyRow) -> None:
    row.config = {**row.config, "rms_norm_eps": 1.0}


def renamed(name: str, other: str) -> Callable[[BodyRow], None]:
    """Exchanges the content of two of the seed's files."""

    def change(row: BodyRow) -> None:
        names = {name: other, other: name}
        row.files = [file.model_copy(update={"name": names.get(file.name, file.name)}) for file in row.files]

    return change


def test_seed_is_verified_and_in_backups(home: Path, database: Database, model: Path, tmp_path: Path) -> None:
    body = registered(home, database, model)
    assert findings(home, database) == []
    back_up(read_settings(home), tmp_path / "backup", SILENT)
    restore(tmp_path / "backup", tmp_path / "again", SILENT)
    with closing(open_database(read_settings(tmp_path / "again").database)) as restored:
        assert current(restored) == [body.digest]


@pytest.mark.parametrize(
    "change",
    [
        other_exponents,
        other_config,
        pytest.param(renamed("config.json", "generation_config.json"), id="config"),
        pytest.param(renamed("tokenizer.json", "tokenizer_config.json"), id="tokenizer"),
        pytest.param(renamed("head.safetensors", "tokenizer.json"), id="head"),
    ],
)
def test_altered_row_of_a_seed_is_found(
    home: Path, database: Database, model: Path, change: Callable[[BodyRow], None]
) -> None:
    body = registered(home, database, model)
    with database.transaction("test") as session:
        change(session.scalars(select(BodyRow)).one())
    found = [(item.what, item.file, item.digest) for item in findings(home, database)]
    assert found[0] == ("altered", "the database", body.digest)
    assert [file for _, file, _ in found[1:]] == ["the public log"]


def test_init_registers_a_seed(model: Path, tmp_path: Path) -> None:
    asked = ["init", str(tmp_path / "home"), "--seed", str(model), "--license", "Apache-2.0"]
    result = CliRunner().invoke(app, asked, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "of small is current" in result.stderr
    assert result.stdout.startswith("moerge_")
    with closing(open_database(read_settings(tmp_path / "home").database)) as database:
        assert len(current(database)) == 1
        assert licenses(database) == ["Apache-2.0"]
