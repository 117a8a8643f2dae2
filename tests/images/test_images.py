"""The images of deploy/, and compose.yaml, by the commands in their headers. `make test-images` runs this."""

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from support.containers import Containers
from support.federation import eventually
from support.models import expert, seed_model, texts
from support.terminal import Shell
from support.transcripts import ROOT, Header

pytestmark = [pytest.mark.images, pytest.mark.timeout(3600)]
BEARER = r"moerge_[\w-]+"
JOIN = r"moerge-join-1\.\S+"
OWNERS = {"law": 1, "medicine": 2}
"""Domain -> the seed of its random expert."""
SERVICES = ("coordinator", "worker-law", "worker-medicine")


def found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    assert match is not None, text
    return match[0]


@pytest.mark.parametrize("name", ["coordinator", "worker"])
def test_an_image_has_a_user_labels_a_commit_and_no_compiler(made: Containers, name: str) -> None:
    [image] = json.loads(made.run("podman", "image", "inspect", f"moerge-{name}"))
    commit = made.run("git", "-C", ROOT, "rev-parse", "HEAD")
    assert image["User"] == "1000"
    assert image["Labels"]["org.opencontainers.image.revision"] == commit
    assert (image.get("Healthcheck") is not None) == (name == "coordinator")
    run = ("podman", "run", "--rm", "--network=none", "--read-only", "--tmpfs=/tmp")
    assert commit[:12] in made.run(*run, f"moerge-{name}", "--version")
    script = "id -u; command -v gcc git curl || echo none"
    assert made.run(*run, "--entrypoint=sh", f"moerge-{name}", "-c", script).split() == ["1000", "none"]


@dataclass(frozen=True)
class Operator:
    """A folder with deploy/ and tiny models; the operator's shell in it, and its token."""

    made: Containers
    shell: Shell
    secret: str

    def compose(self, line: str) -> str:
        return self.shell.types(f"docker compose {line}")

    def asks(self, line: str) -> str:
        """The output of a command in the coordinator's container."""
        return self.compose(f"exec -e MOERGE_TOKEN={self.secret} coordinator {line}")

    def state(self, service: str) -> dict[str, Any]:
        [state] = json.loads(self.made.run("podman", "inspect", container(service)))
        return dict(state)

    def is_healthy(self, service: str) -> bool:
        return self.made.healthy(container(service))

    def stops(self, service: str) -> int:
        """The exit status after SIGTERM, within the grace period."""
        self.compose(f"stop {service}")
        return int(self.state(service)["State"]["ExitCode"])


def container(service: str) -> str:
    return f"deploy_{service}_1"


@pytest.fixture(scope="module")
def operator(made: Containers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """After each command of compose.yaml's header."""
    folder = tmp_path_factory.mktemp("operator") / "deploy"
    shutil.copytree(ROOT / "deploy", folder)
    seed_model(folder / "seed", apart=0.001)
    for domain, seed in OWNERS.items():
        expert(folder / domain / "expert", seed, apart=0.001)
        (folder / domain / "text").mkdir()
        texts(folder / domain / "text" / "a.jsonl", seed, documents=2000)
    with made.shell(folder) as shell, Header("deploy/compose.yaml", indent=8) as part:
        for begins in ("mkdir tls", "openssl req", "cp tls", "sudo chown"):
            shell.types(part.next(begins))
        secret = found(BEARER, shell.types(part.next("docker compose run --rm coordinator coordinator init")))
        assert "is current" in shell.types(part.next("docker compose run --rm coordinator coordinator seed"))
        shell.types(part.next("docker compose up -d coordinator"))

        part.names = {"MOERGE_TOKEN=...": f"MOERGE_TOKEN={secret}"}
        init, approve, keep = (part.next(f"docker compose {begins}") for begins in ("run", "exec", "run"))
        for domain in OWNERS:
            request = found(JOIN, shell.types(init.replace("law", domain)))
            token = found(BEARER, shell.types(approve.replace("moerge-join-1....", request)))
            shell.starts(keep.replace("law", domain), "")
            shell.type(f"{token}\n\x04".encode())
            shell.ends()
        assert not re.search("(?m)^no ", shell.types(part.next("docker compose run --rm worker-law worker check")))
        shell.types(part.next("docker compose up -d"))
        shell.repeats(part.next("docker compose exec"), lambda said: said.count("ready") == len(OWNERS))
        found(r"(?m)^1$", shell.types(part.next("docker compose exec")))
        yield Operator(made, shell, secret)


def test_the_header_of_compose_leads_to_a_version_that_a_consumer_pulls(operator: Operator) -> None:
    said = operator.asks("moerge version show 1")
    assert all(f"{domain}-owner" in said for domain in OWNERS)
    secret = found(BEARER, operator.asks("moerge token add reader"))
    operator.compose(f"exec -e MOERGE_TOKEN={secret} coordinator moerge pull 1 /tmp/model")
    script = (
        "from transformers import AutoModelForCausalLM as M; print(M.from_pretrained('/tmp/model').num_parameters())"
    )
    found(r"(?m)^\d+$", operator.compose(f'exec coordinator python -c "{script}"'))


@pytest.mark.parametrize("service", SERVICES)
def test_a_container_is_healthy_and_hardened_and_shows_no_secret(operator: Operator, service: str) -> None:
    eventually(lambda: operator.is_healthy(service), 120)
    state = operator.state(service)
    assert operator.secret not in json.dumps(state)
    assert not re.search(BEARER, json.dumps(state["Config"]["Env"]))
    assert state["HostConfig"]["ReadonlyRootfs"]
    assert not state["EffectiveCaps"]
    script = "id -u; touch /home/moerge/file 2>&1; stat -c %a /etc/moerge/tls/key.pem 2>&1"
    said = operator.compose(f'exec {service} sh -c "{script}; true"').splitlines()
    assert said[0] == "1000"
    assert "Read-only" in said[1]
    assert said[2] == "600" if service == "coordinator" else "No such file" in said[2]


def test_containers_continue_after_a_restart_and_end_well_on_sigterm(operator: Operator) -> None:
    operator.compose("restart")
    for service in SERVICES:
        eventually(partial(operator.is_healthy, service), 120)
    assert "ready" in operator.asks("moerge expert list")
    assert [operator.stops(service) for service in reversed(SERVICES)] == [0, 0, 0]
    assert [operator.state(service)["RestartCount"] for service in SERVICES] == [0, 0, 0]

    operator.compose("down")
    operator.compose("up -d")
    eventually(lambda: operator.is_healthy("coordinator"), 120)
    assert re.search(r"(?m)^1$", operator.asks("moerge version solve --wait")), "the same inputs, from the same volumes"
