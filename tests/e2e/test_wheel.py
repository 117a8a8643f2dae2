"""The built package, installed outside the source: the client alone without torch, and the coordinator."""

import os
import subprocess
import sys
import sysconfig
import time
import zipfile
from pathlib import Path

import httpx
import pytest

from moerge import __version__
from moerge_lab.demo.processes import address_in
from support.federation import federation_of
from support.wheels import ROOT, run, wheel_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheel_of(ROOT, tmp_path_factory.mktemp("wheel"))


def installed(folder: Path, *arguments: object) -> Path:
    """The `bin` of a new environment."""
    run(sys.executable, "-m", "venv", folder, cwd=folder.parent)
    run(folder / "bin" / "pip", "install", "--quiet", *arguments, cwd=folder)
    return folder / "bin"


def test_the_wheel_has_all_files_of_the_packages(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    packages = ("proto/moerge_proto", "services/moerge", "services/moerge_lab", "workers/moerge_workers")
    for package in map(Path, (*packages, "coordinator/moerge_coordinator")):
        done = run("git", "-C", ROOT, "ls-files", package, cwd=ROOT)
        missing = {str(Path(line).relative_to(package.parent)) for line in done.split()} - names
        assert not missing
        assert f"{package.name}/py.typed" in names


def test_the_client_alone_needs_no_torch(wheel: Path, tmp_path: Path) -> None:
    bin_ = installed(tmp_path / "client", "--constraint", ROOT / "constraints.txt", wheel)
    assert "torch" not in run(bin_ / "pip", "list", cwd=tmp_path)
    with federation_of(tmp_path / "federation", "law", "art") as made:
        made.contribute(made.body())
        made.contribute_heads()
        made.solve()
        access = made.server.environment()
        for command in ("version list", "expert list", "progress", "pull 1 model"):
            run(bin_ / "moerge", *command.split(), cwd=tmp_path, environment=access)
    assert (tmp_path / "model" / "config.json").is_file()
    needs = {"merge --out x --expert a=b": "merge", "worker init": "worker", "table": "lab"}
    for command, extra in needs.items():
        error = run(bin_ / "moerge", *command.split(), cwd=tmp_path, code=1)
        assert f"pip install 'moerge[{extra}]'" in error
    error = run(bin_ / "python", "-c", "from moerge import merge", cwd=tmp_path, code=1)
    assert "pip install 'moerge[merge]'" in error


def test_a_coordinator_serves_its_dashboard_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    bin_ = installed(tmp_path / "all", "--no-deps", wheel)
    [site] = (tmp_path / "all" / "lib").glob("*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_path("purelib"))
    moerge, home = bin_ / "moerge", tmp_path / "home"
    assert str(site) in run(bin_ / "python", "-c", "import moerge; print(moerge.__file__)", cwd=tmp_path)
    run(moerge, "coordinator", "init", home, cwd=tmp_path)
    run(moerge, "coordinator", "check", home, cwd=tmp_path)
    given = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    command = [str(moerge), "coordinator", "serve", str(home), "--port", "0"]
    log = tmp_path / "log"
    with log.open("w") as file, subprocess.Popen(command, env=given, stdout=file, stderr=file) as serving:  # noqa: S603
        try:
            deadline = time.monotonic() + 60
            while (url := address_in(log)) is None:
                assert serving.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
            assert httpx.get(f"{url}/readyz").json()["version"] == __version__
            page = httpx.get(f"{url}/", follow_redirects=True)
            assert page.status_code == 200
            assert "moerge" in page.text
            [style] = [part.split('"')[0] for part in page.text.split('href="') if ".css" in part.split('"')[0]]
            assert httpx.get(f"{url}{style}").status_code == 200
        finally:
            serving.terminate()
        assert serving.wait(30) == 0
