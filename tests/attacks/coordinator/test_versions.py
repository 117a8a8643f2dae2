"""A hostile coordinator asks for the evaluation of a crafted version, and gets none."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from moerge.client.http import Pages
from moerge.errors import MoergeError
from moerge.files import file_sha256
from moerge.merging.local_lineages import local_body, local_version
from moerge.models.expert_folder import DenseExpert
from moerge.models.tokens import all_counted
from moerge.progress import Progress
from moerge.statistics.contribution import router_contribution
from moerge.versions.folder import write_folder
from moerge.versions.version_plan import plan_version
from moerge_proto.bodies import Body
from moerge_proto.evaluations import Evaluation, NewEvaluation
from moerge_proto.experts import Expert
from moerge_proto.messages import FileEntry
from moerge_proto.progress import Obstacle
from moerge_proto.version_files import BODY_FILE, FUSED_FILE, HEAD_FILE, ROUTER_FILE
from moerge_proto.versions import Lineage, Version, VersionFile
from moerge_workers.contributing.evaluation import Evaluations
from moerge_workers.contributing.publications import Versions, logged_body, logged_version
from moerge_workers.outgoing.history import FILE, Sending
from moerge_workers.outgoing.public_log import LogError, PublicLog
from support.models import expert, seed_model, texts
from support.stages import NOW, POLICY, Listed, MemoryClient, another, registered, run_of
from support.versions import ROWS

OWN, OTHER = "model-expert-00000.safetensors", "model-expert-00001.safetensors"


class Hostile(MemoryClient):
    """A coordinator that serves a folder as version 1 of a lineage.

    Attributes:
        folder: of the version's files.
        lineage: that it says.
        came: the evaluations that came.
        downloads: the paths of downloads.
    """

    def __init__(self, body: Body, folder: Path, lineage: Lineage) -> None:
        super().__init__(body)
        self.folder, self.lineage, self.demanded_version = folder, lineage, 1
        self.came, self.downloads = list[NewEvaluation](), list[str]()

    def body(self, digest: str) -> Body:
        assert self.current is not None
        return self.current

    def experts(self) -> Pages[Expert]:
        return Listed([])

    def version(self, number: int | str) -> Version:
        files = [
            VersionFile(name=path.name, sha256=file_sha256(path), size=path.stat().st_size, new=True)
            for path in sorted(self.folder.iterdir())
        ]
        fields = {
            "number": 1,
            "lineage": self.lineage,
            "files": files,
            "bytes_total": 1,
            "bytes_written": 1,
            "note": "",
        }
        more = {"tags": [], "aliases": [], "contains_withdrawn": [], "created": NOW, "withheld": None, "retired": None}
        return Version.model_validate({**fields, **more})

    def evaluations(self, number: int | str, *, replaced: bool = False) -> Pages[Evaluation]:
        return Listed([])

    def evaluate(self, new: NewEvaluation) -> list[Evaluation]:
        self.came.append(new)
        return []

    def download(self, path: str, files: list[FileEntry], folder: Path, progress: Progress, *, title: str) -> int:
        assert "/versions/" in path
        self.downloads.append(path)
        shutil.copytree(self.folder, folder)
        return 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("owner"))


def made(folder: Path, family: str = "llama") -> Path:
    """The owner's expert, another one, their seed and its body, and the version of both."""
    places = {"law": folder / "expert", "art": folder / "other"}
    own = [
        DenseExpert(name, expert(at, seed, family, apart=0.002)) for seed, (name, at) in enumerate(places.items(), 1)
    ]
    seed = DenseExpert("seed", seed_model(folder / "seed", family=family))
    body = local_body([], folder / "body", "seed", base=seed)
    sent = [router_contribution(item, body, all_counted(ROWS), folder / f"{item.domain}.safetensors") for item in own]
    lineage, inputs = local_version(own, body, sent, head="average")
    write_folder(plan_version(lineage, inputs).files, folder / "version")
    (folder / "lineage.json").write_text(lineage.model_dump_json())
    return folder


@pytest.fixture
def client(folder: Path, tmp_path: Path) -> Hostile:
    return serving(folder, tmp_path)


def serving(folder: Path, tmp_path: Path) -> Hostile:
    """A coordinator that serves a copy of the version, beside the owner's texts."""
    texts(tmp_path / "texts.jsonl", 1, 60)
    served = shutil.copytree(folder / "version", tmp_path / "served")
    body = registered(folder / "seed", folder / "registered")
    return Hostile(body, served, Lineage.model_validate_json((folder / "lineage.json").read_bytes()))


def evaluated(folder: Path, home: Path, client: Hostile, **policy: object) -> tuple[list[Sending], Obstacle | None]:
    """Everything that left in one look for versions, and what hinders."""
    policy = {"evaluation_sums": True, **POLICY, **policy}
    with run_of(folder, home, client, policy=policy, held_out_share=0.5) as run:
        Evaluations(run.exchange, run.documents, run.expert).look(1)
        return run.history.sendings(), run.documents.events.status.state.obstacle


def log_another(home: Path, client: Hostile) -> None:
    """The coordinator's log is another one, and the home has seen none."""
    client.entries.clear()
    (home / FILE).unlink(missing_ok=True)


def scale(path: Path, name: str, by: float) -> None:
    tensors = load_file(path)
    save_file(
        {item: tensor * by if name in item else tensor for item, tensor in tensors.items()}, path, {"format": "pt"}
    )


def body_bytes(version: Path) -> None:
    scale(version / BODY_FILE, "layers.1.self_attn.o_proj", 1.001)


def own_mlp(version: Path) -> None:
    scale(version / OWN, "layers.0", 1.001)


def own_slot_is_another_s(version: Path) -> None:
    own, other = load_file(version / OWN), load_file(version / OTHER)
    swapped = {name: other[name.replace("experts.0.", "experts.1.")] for name in own}
    save_file(swapped, version / OWN, {"format": "pt"})


def body_tensor_in_the_routers(version: Path) -> None:
    routers = load_file(version / ROUTER_FILE)
    name = "model.layers.0.self_attn.o_proj.weight"
    save_file({**routers, name: load_file(version / BODY_FILE)[name] * 0}, version / ROUTER_FILE, {"format": "pt"})


def body_tensor_in_the_head(version: Path) -> None:
    name = "model.embed_tokens.weight"
    save_file({**load_file(version / HEAD_FILE), name: load_file(version / BODY_FILE)[name] * 0}, version / HEAD_FILE)


CRAFTS = [body_bytes, own_mlp, own_slot_is_another_s, body_tensor_in_the_routers, body_tensor_in_the_head]


@pytest.mark.parametrize("craft", CRAFTS)
def test_altered_version_is_not_evaluated(
    folder: Path, tmp_path: Path, client: Hostile, craft: Callable[[Path], None]
) -> None:
    craft(client.folder)
    assert evaluated(folder, tmp_path, client) == ([], Obstacle.VERSION_ALTERED)
    assert client.came == []


def test_altered_slot_of_fused_experts_is_not_evaluated(tmp_path: Path) -> None:
    (tmp_path / "owner").mkdir()
    folder = made(tmp_path / "owner", "granite")
    client = serving(folder, tmp_path)
    path = client.folder / FUSED_FILE
    honest = load_file(path)
    name = "model.layers.1.block_sparse_moe.output_linear.weight"
    mine, short, flat = {**honest}, {**honest}, {**honest}
    mine[name] = honest[name] * torch.tensor([1.001, 1.0])[:, None, None]
    short[name], flat[name] = honest[name][:1].clone(), honest[name].flatten().clone()
    turned = {item: tensor.flip(0) for item, tensor in honest.items()}
    for crafted in (mine, short, flat, turned):
        save_file(crafted, path, {"format": "pt"})
        log_another(tmp_path, client)
        assert evaluated(folder, tmp_path, client) == ([], Obstacle.VERSION_ALTERED)
    theirs = {**honest, name: honest[name] * torch.tensor([1.0, 0.5])[:, None, None]}
    save_file(theirs, path, {"format": "pt"})  # another expert's can't be checked
    log_another(tmp_path, client)
    [sent], obstacle = evaluated(folder, tmp_path, client)
    assert (sent.item.kind, obstacle, len(client.came)) == ("evaluation", None, 1)


def test_unverified_files_of_the_coordinator_have_no_effect(folder: Path, tmp_path: Path, client: Hostile) -> None:
    """A config with another activation, and a second set of weights, which transformers would prefer."""
    [honest], _ = evaluated(folder, tmp_path, client)
    config = json.loads((client.folder / "config.json").read_text())
    (client.folder / "config.json").write_text(json.dumps({**config, "hidden_act": "relu", "rms_norm_eps": 1.0}))
    shutil.copy(client.folder / OWN, client.folder / "model.safetensors")
    home = tmp_path / "second"
    home.mkdir()
    (home / "key").write_bytes((tmp_path / "key").read_bytes())
    shutil.copy(tmp_path / "texts.jsonl", home)
    log_another(home, client)
    [crafted], _ = evaluated(folder, home, client)
    assert crafted.item.digest == honest.item.digest
    assert honest.item.body == client.lineage.body
    assert len(client.came) == 2


def test_version_of_a_refused_body_is_not_evaluated(folder: Path, tmp_path: Path, client: Hostile) -> None:
    client.current = another(tmp_path)
    client.lineage = client.lineage.model_copy(update={"body": client.current.digest})
    assert evaluated(folder, tmp_path, client) == ([], Obstacle.BODY_REFUSED)
    assert client.downloads == []


def test_another_version_or_body_than_asked_for_is_refused(folder: Path, tmp_path: Path, client: Hostile) -> None:
    with run_of(folder, tmp_path, client) as run:
        with pytest.raises(LogError, match="expected version 2; the coordinator served version 1"):
            logged_version(run.exchange, 2)
        with pytest.raises(LogError, match="expected body 000000000000; the coordinator served body "):
            logged_body(run.exchange, "0" * 64)
        assert run.documents.events.status.state.obstacle is Obstacle.LOG_DIFFERS
    client.lineage = client.lineage.model_copy(update={"body": "0" * 64})
    assert looked(folder, tmp_path, client)[0] is None
    with pytest.raises(LogError):
        evaluated(folder, tmp_path, client)
    assert (client.came, client.downloads) == ([], [])


def test_a_version_beyond_the_budget_waits_for_the_owner(folder: Path, tmp_path: Path, client: Hostile) -> None:
    assert evaluated(folder, tmp_path, client, versions_per_month=0) == ([], Obstacle.ASKS_OWNER)
    with run_of(folder, tmp_path, client) as run:
        [asked] = run.history.asked()
        run.history.note(asked, "approved")
    [sent], _ = evaluated(folder, tmp_path, client, versions_per_month=0)
    assert sent.item.kind == "evaluation"


def looked(folder: Path, home: Path, client: Hostile, **how: Any) -> tuple[str | None, str]:
    """The finding about version 1 by a worker that doesn't evaluate, and its error, if any."""
    with run_of(folder, home, client, **how) as run:
        try:
            Versions(run.exchange, run.expert).look(client.demands(run.expert.digest))
            error = ""
        except MoergeError as raised:
            error = str(raised)
        return PublicLog(run.history, run.documents.settings.coordinator).finding(1), error


def test_new_versions_are_compared_without_evaluation_or_download(
    folder: Path, tmp_path: Path, client: Hostile
) -> None:
    honest = "your MLPs are unchanged; its body is not on this machine"
    assert looked(folder, tmp_path, client, seed=None) == (honest, "")
    log_another(tmp_path, client)
    assert looked(folder, tmp_path, client) == ("your MLPs are unchanged; the body is unchanged", "")
    for craft in (own_mlp, body_bytes):
        craft(client.folder)
        log_another(tmp_path, client)
        found, error = looked(folder, tmp_path, client)
        assert (found or "").startswith("refused: model-")
        assert error.startswith(f"version 1: {found}")
        assert looked(folder, tmp_path, client, once=False) == (found, ""), "a longer run goes on"
    log_another(tmp_path, client)
    lying = {"domains": ["code", "art"]}
    client.lineage = client.lineage.model_copy(update=lying)
    found, _ = looked(folder, tmp_path, client)
    assert (found or "").startswith("refused: its lineage isn't the one of moerge.json")
    assert client.downloads == []


def test_fused_mlps_are_not_compared_without_evaluation(tmp_path: Path) -> None:
    (tmp_path / "owner").mkdir()
    folder = made(tmp_path / "owner", "granite")
    found, error = looked(folder, tmp_path, serving(folder, tmp_path))
    assert (found or "").startswith(f"{FUSED_FILE} has all experts' MLPs, so yours are compared only before")
    assert error == ""
