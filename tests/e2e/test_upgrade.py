"""The last release, from its wheel: its coordinator with this worker and client, and the other way round."""

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from sqlalchemy import inspect

from moerge.client.client import Client
from moerge_coordinator.storage.database import open_database
from moerge_coordinator.storage.tables import Base
from moerge_lab.demo.processes import Processes, address_in
from support.federation import eventually
from support.models import expert, seed_model, texts
from support.releases import THIS, Build, released
from support.versions import loaded

pytestmark = pytest.mark.slow

SETTINGS = """
held_out_share = 0.3
[policy]
evaluation_sums = true
redistribute = true
min_documents = 20
"""


@dataclass
class Home:
    """A coordinator's home, made by the last release, with a seed."""

    path: Path
    token: str
    release: Build

    def serve(self, build: Build, processes: Processes) -> str:
        """Its address, served by a build."""
        log = self.path.with_name(f"{self.path.name}-{len(list(self.path.parent.iterdir()))}.log")
        processes.start(["coordinator", "serve", self.path, "--port", "0"], build.environment(), log=log)
        eventually(lambda: log.exists() and address_in(log) is not None, 120)
        return address_in(log) or ""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    folder = tmp_path_factory.mktemp("upgrade")
    release, path = released(folder), folder / "home"
    token = release.moerge("coordinator", "init", path, cwd=folder).splitlines()[0]
    release.moerge("coordinator", "seed", path, seed_model(folder / "seed"), cwd=folder)
    return Home(path, token, release)


@pytest.fixture
def processes() -> Iterator[Processes]:
    with Processes() as made:
        yield made


def life(home: Home, url: str, build: Build, processes: Processes, domain: str, seed: int) -> int:
    """A newcomer's worker and an operator, both of a build: join, contribution, solve, evaluation, pull.

    Returns the version's number.
    """
    folder = home.path.parent / domain
    place, access = folder / "worker", {"MOERGE_COORDINATOR": url, "MOERGE_TOKEN": home.token}
    place.mkdir(parents=True)

    def moerge(*arguments: object) -> str:
        return build.moerge(*arguments, cwd=folder, HOME=str(folder), **access)

    [request, *_] = moerge("worker", "init", "--owner", f"{domain}-owner", "--domain", domain).splitlines()
    said = moerge("owner", "approve", request)
    (place / "token").write_text(next(line for line in said.splitlines() if line.startswith("moerge_")))
    (place / "token").chmod(0o600)
    (place / "worker.toml").write_text(SETTINGS)
    dense, data = expert(folder / "expert", seed), texts(folder / "texts.jsonl", seed, documents=150)
    given = ["--home", place, "--domain", domain, "--expert", dense, "--data", data, "--seed", folder.parent / "seed"]
    environment = build.environment(HOME=str(folder), MOERGE_COORDINATOR=url)
    worker = processes.start(["worker", "run", *given], environment, log=folder / "log")
    log = (folder / "log").read_text
    with Client(url, home.token) as operator:

        def sent(kind: str) -> bool:
            assert worker.poll() is None, log()
            return any(row.domain == domain for row in operator.contributions(kind))  # type: ignore[arg-type]

        for kind in ("router", "head"):
            eventually(lambda kind=kind: sent(kind), 240)  # type: ignore[misc]
        number = int(moerge("version", "solve", "--wait").splitlines()[0].split()[-1])
        eventually(lambda: any(row.score.name == domain for row in operator.evaluations(number)), 120)
    assert domain in moerge("version", "table", number)
    moerge("pull", number, folder / "pulled")
    loaded(folder / "pulled")
    assert domain in json.loads((folder / "pulled" / "moerge.json").read_text())["domains"]
    worker.terminate()
    assert worker.wait(60) == 0, log()
    return number


def test_this_worker_and_client_at_the_last_release_s_coordinator(home: Home, processes: Processes) -> None:
    url = home.serve(home.release, processes)
    life(home, url, THIS, processes, "law", 1)
    said = home.release.moerge("worker", "history", "--home", home.path.parent / "law" / "worker", cwd=home.path)
    assert "router" in said, "the last release reads a worker's home of this build"


def test_the_last_release_s_worker_and_client_at_this_coordinator(home: Home, processes: Processes) -> None:
    """The coordinator serves the last release's home."""
    url = home.serve(THIS, processes)
    assert httpx.get(f"{url}/readyz").json()["status"] == "ok"
    with closing(open_database(home.path / "coordinator.sqlite")) as database:
        tables = inspect(database.engine)
        columns = {name: {item["name"] for item in tables.get_columns(name)} for name in Base.metadata.tables}
    assert columns == {name: set(table.columns.keys()) for name, table in Base.metadata.tables.items()}
    number = life(home, url, home.release, processes, "art", 2)
    with Client(url, home.token) as operator:
        assert operator.version(number).lineage.domains[-1] == "art"
