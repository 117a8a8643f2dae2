"""Docker's commands by Debian's tools, as root: no daemon, no registry, and a network of their own."""

import json
import os
import resource
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.terminal import Shell

PACKAGES = {
    "buildah": "buildah",
    "podman": "podman",
    "runc": "runc",
    "/usr/lib/podman/netavark": "netavark",
    "/usr/lib/podman/aardvark-dns": "aardvark-dns",
    "iptables": "iptables",
    "catatonit": "catatonit",
    "mmdebstrap": "mmdebstrap",
    "ip": "iproute2",
    "openssl": "openssl",
}
"""Program -> the package of Debian that has it."""

BASE = "localhost/moerge-base"
_PYTHON = "ca-certificates,python-is-python3,python3,python3-venv"
_LIMITS = {"nofile": (resource.RLIMIT_NOFILE, 2**20), "nproc": (resource.RLIMIT_NPROC, 2**15)}
"""What podman sets for itself, even where nobody may raise a limit again."""

_DOCKER = """#!/bin/sh
# `docker build` and `docker compose`.
command=$1
shift
case $command in
build) exec buildah build --isolation chroot --format docker --pull-never {options} "$@" ;;
compose) exec podman-compose "$@" ;;
esac
"""
_PODMAN = """#!/bin/sh
# `docker compose run` prints only its command's output, podman-compose the id of its pod before.
case "$1 $2" in
"pod create") exec {podman} "$@" >&2 ;;
*) exec {podman} "$@" ;;
esac
"""
_SUDO = """#!/bin/sh
exec "$@"
"""


def require_tools() -> None:
    """Fails with the command that installs the missing packages."""
    assert os.geteuid() == 0, "containers with a network of their own need root"
    missing = [package for program, package in PACKAGES.items() if shutil.which(program) is None]
    assert not missing, f"missing: apt-get install --no-install-recommends {' '.join(missing)}"


class Containers:
    """Images and containers below a folder."""

    def __init__(self, folder: Path, network_of: int, options: str) -> None:
        self._folder = folder.resolve()
        self._enter = ["nsenter", f"--net=/proc/{network_of}/ns/net"]
        store, settings, programs = (self._folder / name for name in ("storage.conf", "containers.conf", "programs"))
        programs.mkdir(parents=True, exist_ok=True)
        scripts = {
            "docker": _DOCKER.format(options=options),
            "podman": _PODMAN.format(podman=shutil.which("podman")),
            "sudo": _SUDO,
        }
        for name, script in scripts.items():
            (programs / name).write_text(script)
            (programs / name).chmod(0o755)
        driver = os.environ.get("DRIVER") or "overlay"
        root = self._folder / "store"
        store.write_text(f'[storage]\ndriver = "{driver}"\ngraphroot = "{root}/graph"\nrunroot = "{root}/run"\n')
        limits = {name: min(most, resource.getrlimit(kind)[1]) for name, (kind, most) in _LIMITS.items()}
        ulimits: object = [f"{name}={value}:{value}" for name, value in limits.items()]
        engine: dict[str, object] = {
            "cgroup_manager": "cgroupfs",
            "events_logger": "file",
            "runtime": "runc",
            "tmp_dir": f"{root}/libpod",
        }
        network: dict[str, object] = {"network_backend": "netavark", "network_config_dir": f"{root}/networks"}
        tables = {"containers": {"default_ulimits": ulimits}, "engine": engine, "network": network}
        lines = [
            f"[{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())
            for name, table in tables.items()
        ]
        settings.write_text("".join(lines))
        self._environment = {
            "CONTAINERS_STORAGE_CONF": str(store),
            "CONTAINERS_CONF": str(settings),
            "PATH": f"{programs}:{Path(sys.executable).parent}:{self._folder / 'bin'}:{os.environ['PATH']}",
        }

    def run(self, *command: object) -> str:
        """The standard output of a command, which must succeed; podman's are in the network."""
        done = self._done(*command)
        assert done.returncode == 0, f"{shlex.join(done.args)}\n{done.stdout}\n{done.stderr}"
        return done.stdout.strip()

    def _done(self, *command: object) -> subprocess.CompletedProcess[str]:
        words = [*(self._enter if command[0] == "podman" else ()), *map(str, command)]
        given = {**os.environ, **self._environment}
        return subprocess.run(words, env=given, capture_output=True, text=True, check=False)  # noqa: S603

    def shell(self, folder: Path, **environment: str) -> Shell:
        """A shell in their network, whose `docker` is this."""
        return Shell(folder, *self._enter, **self._environment, **environment)

    def has(self, image: str) -> bool:
        return bool(self.run("podman", "images", "--quiet", image))

    def healthy(self, container: str) -> bool:
        """Whether its health check succeeds now."""
        return self._done("podman", "healthcheck", "run", container).returncode == 0

    def make_base(self, suite: str) -> None:
        """The image BASE: a suite of Debian with its Python."""
        archive = self._folder / "base.tar"
        self.run("mmdebstrap", "--quiet", "--variant=minbase", f"--include={_PYTHON}", suite, archive)
        self.run("podman", "import", "--quiet", archive, BASE)
        archive.unlink()

    def clear(self) -> None:
        """Removes every container, volume and network; images stay."""
        self.run("podman", "pod", "rm", "--all", "--force")
        self.run("podman", "rm", "--all", "--force", "--volumes", "--time", "5")
        self.run("podman", "volume", "prune", "--force")
        self.run("podman", "network", "prune", "--force")


@contextmanager
def containers(folder: Path, options: str) -> Iterator[Containers]:
    """`options` are further ones of `buildah build`."""
    hold = ["unshare", "--net", "sh", "-c", "ip link set lo up && echo ready && exec sleep infinity"]
    with subprocess.Popen(hold, stdout=subprocess.PIPE, text=True) as network:  # noqa: S603
        try:
            assert network.stdout is not None
            assert network.stdout.readline() == "ready\n"
            made = Containers(folder, network.pid, options)
            made.clear()
            try:
                yield made
            finally:
                made.clear()
        finally:
            network.kill()
