"""What README and deploy/ tell people to type exists: commands, options, paths, settings, extras."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from moerge_coordinator.settings import read_settings
from moerge_proto.demands import LONGEST_WAIT
from moerge_proto.uploads import MAX_CHUNK_BYTES
from moerge_workers import settings as worker
from support.commands import command, require_command
from support.processes import run_command
from support.transcripts import PAGES, Header, block

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
TWO_MACHINES = ROOT / "examples" / "two-machines"
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
UID = "1000"
"""The user of containers."""
SECRET = re.compile("TOKEN|SECRET|PASSWORD|PRIVATE|CREDENTIAL")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    """(INSTRUCTION, rest) of a Dockerfile, with continued lines joined."""
    text = re.sub(r"\\\n\s*", " ", dockerfile.read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in lines]


def written_commands() -> list[list[str]]:
    """Every command in a block of README, docs/ and the laboratory's figures."""
    text = "\n".join((ROOT / page).read_text() for page in PAGES)
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    blocks = [block for language, block in fenced if language in ("", "sh")]
    lines = {line.partition(" #")[0].partition(" && ")[0].strip() for block in blocks for line in block.splitlines()}
    return [shlex.split(line)[1:] for line in sorted(lines) if line.startswith("moerge ")]


@pytest.mark.parametrize("arguments", written_commands(), ids=" ".join)
def test_every_command_that_is_written_down_exists(arguments: list[str]) -> None:
    require_command(arguments)


EVERY_HELP = """
import sys
from typer import Context
from moerge.cli.app import every_command, main

for path, command in every_command():
    print(command.get_help(Context(command, info_name=path)))
print("loaded:", *{"torch", "transformers", "dbos", "sqlalchemy", "ray"}.intersection(sys.modules))
sys.modules["structlog"] = None  # as if the extra were not installed
sys.argv = ["moerge", "worker", "run", "--log-format", "json"]
main()
"""


def test_help_does_not_import_torch_and_names_a_missing_extra() -> None:
    done = subprocess.run([sys.executable, "-c", EVERY_HELP], capture_output=True, text=True, check=False)  # noqa: S603
    helps, _, loaded = done.stdout.partition("loaded:")
    assert not loaded.strip()
    for words in ("version solve", "coordinator init", "worker run", "table", "demo"):
        assert f"Usage: moerge {words} " in helps, done.stderr
    assert "error: moerge worker: needs structlog" in done.stderr
    assert "pip install 'moerge[worker]'" in done.stderr


UNREADABLE = """
import os
from moerge.cli.app import main
import moerge.statistics.describe
if os.getuid() == 0:
    os.seteuid(65534)
main()
"""


def test_a_file_without_permission_is_named(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    path.chmod(0)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o111)
    done = run_command("inspect", path, script=UNREADABLE)
    assert done.returncode == 1
    assert f"error: {path}: permission denied" in done.stderr
    assert "what to do" in done.stderr


def test_a_noun_s_verbs_are_listed_in_the_order_of_use() -> None:
    for noun, verbs in (("contribution", ["list", "withdraw"]), ("version", ["solve", "list", "show", "promote"])):
        assert list(command([noun]).commands)[: len(verbs)] == verbs  # type: ignore[attr-defined]  # it is a group


def test_the_readme_s_paths_and_make_targets_exist() -> None:
    readme = (ROOT / "README.md").read_text()
    for path in re.findall(r"^([a-z_/]+/) {2,}", readme, re.MULTILINE):
        assert (ROOT / path).is_dir(), path
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"make ([a-z-]+) ", readme):
        assert f"\n{target}:" in makefile, target


@pytest.mark.parametrize("name", ["coordinator", "worker"])
def test_dockerfiles_copy_existing_files_and_install_extras(name: str) -> None:
    steps = instructions(DEPLOY / f"{name}.Dockerfile")
    for kind, rest in steps:
        if kind == "COPY" and not rest.startswith("--from=build "):
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source
    commands = " ".join(rest for kind, rest in steps if kind == "RUN")
    assert set(re.findall(r"'\.\[(\w+)\]'", commands)) == {name}
    assert name in PROJECT["optional-dependencies"]
    constraints = (ROOT / "constraints.txt").read_text().splitlines()
    assert re.findall(r"torch==[\d.]+", commands)[0] in constraints
    entry = dict(steps)["ENTRYPOINT"]
    assert yaml.safe_load(entry) == ["moerge"]
    assert "moerge" in PROJECT["scripts"]
    require_command([word for word in yaml.safe_load(dict(steps)["CMD"]) if word != "--help"])
    assert dict(steps)["USER"] == UID


@pytest.mark.parametrize("name", ["coordinator", "worker"])
def test_images_take_indexes_as_arguments_and_hold_no_root_and_no_secret(name: str) -> None:
    steps = instructions(DEPLOY / f"{name}.Dockerfile")
    assert [rest for kind, rest in steps if kind == "FROM"] == ["${PYTHON_IMAGE} AS build", "${PYTHON_IMAGE}"]
    arguments = {rest.partition("=")[0] for kind, rest in steps if kind == "ARG"}
    assert arguments >= {"PYTHON_IMAGE", "PIP_INDEX_URL", "TORCH_INDEX_URL", "COMMIT"}
    commands = [rest for kind, rest in steps if kind == "RUN"]
    assert all(
        "--index-url ${" in each for command in commands for each in command.split("&&") if "pip install" in each
    )
    assert f"useradd --uid {UID} " in " ".join(commands)
    [labels] = [rest for kind, rest in steps if kind == "LABEL"]
    for label in ("title", "licenses", "revision"):
        assert f"org.opencontainers.image.{label}=" in labels
    assert not [rest for kind, rest in steps if kind in ("ENV", "ARG") and SECRET.search(rest)]


def test_a_build_gets_only_the_files_that_dockerfiles_copy() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert lines[0] == "*"
    sent = {line[1:] for line in lines if line.startswith("!")}
    steps = [step for name in ("coordinator", "worker") for step in instructions(DEPLOY / f"{name}.Dockerfile")]
    copied = [rest.split()[:-1] for kind, rest in steps if kind == "COPY" and not rest.startswith("--from")]
    assert sent == {source for sources in copied for source in sources}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd isn't installed")
@pytest.mark.parametrize("name", ["moerge-coordinator.service", "moerge-worker@.service"])
def test_units_are_valid_hardened_and_run_what_exists(name: str, tmp_path: Path) -> None:
    text = (DEPLOY / "systemd" / name).read_text()
    [line] = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    require_command(shlex.split(line)[1:])
    unit = tmp_path / name
    unit.write_text(text.replace("/opt/moerge/bin/moerge", "/bin/true"))
    for arguments in (["verify"], ["security", "--offline=true", "--threshold=40"]):
        done = subprocess.run(["systemd-analyze", *arguments, unit], capture_output=True, text=True, check=False)  # noqa: S603, S607
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("service", SERVICES)
def test_compose_services_build_and_run_what_exists(service: str) -> None:
    settings = SERVICES[service]
    assert (DEPLOY / settings["build"]["context"] / settings["build"]["dockerfile"]).is_file()
    require_command(settings["command"])
    dockerfile = (DEPLOY / settings["build"]["context"] / settings["build"]["dockerfile"]).read_text()
    mounts = {volume.split(":")[1] for volume in settings["volumes"]}
    declared = re.findall(r"^VOLUME (\S+)", dockerfile, re.MULTILINE)
    assert set(declared) <= mounts
    assert settings["image"] == f"moerge-{Path(settings['build']['dockerfile']).stem}"
    for argument in settings["command"]:
        path = argument.partition("=")[2] or argument
        if path.startswith("/"):
            assert any(path.startswith(mount) for mount in mounts), path


@pytest.mark.parametrize("service", SERVICES)
def test_compose_services_are_hardened_limited_and_watched(service: str) -> None:
    settings = SERVICES[service]
    assert settings["read_only"] is True
    assert settings["tmpfs"] == ["/tmp"]  # noqa: S108  # in the container
    assert settings["cap_drop"] == ["ALL"]
    assert settings["security_opt"] == ["no-new-privileges:true"]
    assert settings["logging"]["options"].keys() == {"max-size", "max-file"}
    assert {"mem_limit", "stop_grace_period"} <= settings.keys()
    assert not [name for name in settings["environment"] if SECRET.search(name)]
    assert all(volume.endswith(":ro") for volume in settings["volumes"] if volume.startswith("./"))
    test = settings["healthcheck"]["test"]
    assert test[:3] == ["CMD", "python", "-c"]
    compile(test[3], "healthcheck", "exec")


def test_a_worker_s_health_check_asks_the_port_of_its_metrics() -> None:
    port = tomllib.loads((DEPLOY / "worker.toml").read_text())["metrics_port"]
    for name, settings in SERVICES.items():
        if name.startswith("worker"):
            assert f"('127.0.0.1', {port})" in settings["healthcheck"]["test"][3]


def test_compose_s_header_names_commands_and_folders_that_exist() -> None:
    with Header("deploy/compose.yaml", indent=8) as part:
        lines = part.rest()
    typed = [words for line in lines if (words := shlex.split(line))[:2] == ["docker", "compose"]]
    named = [words[words.index(service) + 1 :] for words in typed for service in SERVICES if service in words]
    commands = [words for words in named if words and words[0] != "-c"]
    assert len(commands) >= 6
    for words in commands:
        require_command([word for word in words if word != "moerge" and "..." not in word])
    made = next(line.split()[1:] for line in lines if line.startswith("mkdir "))
    owned = next(line.split()[4:] for line in lines if line.startswith(f"sudo chown -R {UID} "))
    mounted = {
        Path(volume).parts[0].partition(":")[0]
        for item in SERVICES.values()
        for volume in item["volumes"]
        if volume.startswith("./")
    }
    assert set(made) < set(owned) == {name for name in mounted if not (DEPLOY / name).is_file()}


def test_compose_workers_speak_https_to_the_coordinator_s_port() -> None:
    text = (DEPLOY / "coordinator.toml").read_text()
    port = tomllib.loads(text)["port"]
    for service in SERVICES.values():
        assert service["environment"]["MOERGE_COORDINATOR"] == f"https://coordinator:{port}"


def test_the_sample_settings_are_read(tmp_path: Path) -> None:
    (tmp_path / "coordinator.toml").write_text((DEPLOY / "coordinator.toml").read_text())
    settings = read_settings(tmp_path)
    assert settings.host == "0.0.0.0"  # noqa: S104  # in a container
    mounts = {volume.split(":")[1] for volume in SERVICES["coordinator"]["volumes"]}
    assert settings.tls_certificate is not None
    assert str(settings.tls_certificate.parent) in mounts


@pytest.mark.parametrize("service", [name for name in SERVICES if name.startswith("worker")])
def test_the_workers_sample_settings_are_read(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "checkpoint_folder", Path)  # it is mounted where the container runs
    given = dict(argument[2:].split("=") for argument in SERVICES[service]["command"] if argument.startswith("--"))
    given |= {"coordinator": "https://coordinator:8080", "token": "x"}
    settings = worker.read_settings(given, DEPLOY / "worker.toml")
    places = [volume.split(":")[1] for volume in SERVICES[service]["volumes"]]
    assert f"{settings.home}/{worker.FILE}" in places
    for path in (str(settings.expert), *settings.data):
        assert any(path.startswith(place) for place in places), path


@pytest.mark.parametrize("name", ["operator", "owner"])
def test_the_example_of_two_machines_has_no_mount_of_deploy_but_settings(name: str) -> None:
    made = yaml.safe_load((TWO_MACHINES / f"{name}.yaml").read_text())
    [service] = made["services"].values()
    assert (TWO_MACHINES / service["extends"]["file"]).samefile(DEPLOY / "compose.yaml")
    base = dict(volume.split(":", 2)[1::-1] for volume in SERVICES[service["extends"]["service"]]["volumes"])
    own = dict(volume.split(":", 2)[1::-1] for volume in service["volumes"])
    assert own.keys() <= base.keys()
    assert all(base[target] in made["volumes"] or base[target].endswith(".toml") for target in base.keys() - own.keys())
    assert all(source in made["volumes"] for source in own.values() if not source.startswith("."))
    assert all(volume.endswith(":ro") for volume in service["volumes"] if volume.startswith("."))


def test_the_example_s_worker_settings_differ_from_deploy_s_in_lengths_and_policy_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "checkpoint_folder", Path)
    given = {"coordinator": "https://192.0.2.1:8080", "token": "x", "domain": "code", "home": "/var/lib/moerge"}
    read = [worker.read_settings(given, folder / "worker.toml") for folder in (DEPLOY, TWO_MACHINES)]
    same, different = ({**vars(settings)} for settings in read)
    assert {name for name in same if same[name] != different[name]} == {"statistics", "policy", "license"}


def test_the_page_s_sample_of_settings_is_valid() -> None:
    values = tomllib.loads(block("docs/owners/start.md", "toml"))
    assert worker.Settings.model_validate({**values, "token": "x", "home": "x"}).policy.mode == "ask"


def test_the_proxy_lets_chunks_pass_and_limits_peers() -> None:
    text = re.sub(r"#.*", "", (DEPLOY / "nginx.conf").read_text())
    lines = dict(re.findall(r"^\s*(\w+)\s+([^;{]+);", text, re.MULTILINE))
    assert int(lines["client_max_body_size"].removesuffix("m")) * 2**20 >= MAX_CHUNK_BYTES
    assert {"client_header_timeout", "client_body_timeout", "limit_conn", "limit_req"} <= lines.keys()
    assert text.count("{") == text.count("}")
    assert int(lines["proxy_read_timeout"].removesuffix("s")) > LONGEST_WAIT
    assert lines["limit_req"].endswith("nodelay")
