"""The main job with real processes: two owners' workers, a version, then a third owner under the same trunk."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest
from safetensors import safe_open

from moerge_proto.signatures import public_key_of
from moerge_workers.leaving.owner_key import read_owner_key
from support.models import expert, texts
from support.processes import Coordinator, coordinator, ended, moerge, start_worker, worker_command

LOAD = """
import sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
for folder in sys.argv[1:]:
    model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    ids = AutoTokenizer.from_pretrained(folder)("some text", return_tensors="pt").input_ids
    print(type(model).__name__, bool(torch.isfinite(model(ids).logits).all()))
"""


@dataclass
class House:
    """A coordinator, and owners each with an expert and texts."""

    server: Coordinator
    folder: Path
    tokens: dict[str, str] = field(default_factory=dict)

    def add_owner(self, domain: str, seed: int) -> None:
        expert(self.folder / domain / "expert", seed)
        texts(self.folder / domain / "texts.jsonl", seed, documents=150)
        key = self.folder / domain / "worker"
        request = moerge("worker", "init", "--owner", f"{domain}-owner", "--domain", domain, "--home", key)
        self.tokens[domain] = self.operator("owner", "approve", request)

    def operator(self, *arguments: object) -> str:
        return moerge(*arguments, **self.server.environment())

    def start_worker(self, domain: str) -> ForkServerProcess:
        home = self.folder / domain
        command = worker_command(domain, home / "expert", home / "texts.jsonl", home / "worker")
        return start_worker(command, self.server.environment(self.tokens[domain]), home / "log")

    def log(self, domain: str) -> str:
        return (self.folder / domain / "log").read_text()

    def wait_for(self, domain: str, text: str) -> None:
        while text not in self.log(domain):
            time.sleep(0.1)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """After the whole flow: version 1 of law and art, version 2 with code too."""
    folder = tmp_path_factory.mktemp("house")
    with coordinator(folder / "home") as server:
        made = House(server, folder)
        for seed, domain in enumerate(("law", "art", "code"), start=1):
            made.add_owner(domain, seed)
        workers = []
        for domain in ("law", "art"):  # one after the other, so that the slots' order is known
            workers.append(made.start_worker(domain))
            made.wait_for(domain, "waiting for the operator to merge a trunk")
        made.operator("trunk", "merge")
        assert [ended(worker, 120) for worker in workers] == [0, 0]
        assert made.operator("version", "solve") == "1"
        assert ended(made.start_worker("code"), 120) == 0
        assert made.operator("version", "solve") == "2"
        yield made


def version(house: House, number: int) -> Path:
    return house.server.home / "versions" / str(number)


def test_law_6_stock_transformers_loads_versions_in_a_process_of_its_own(house: House) -> None:
    done = subprocess.run(  # noqa: S603  # our own script
        [sys.executable, "-c", LOAD, version(house, 1), version(house, 2)], capture_output=True, text=True, check=False
    )
    assert done.stdout.split("\n") == ["MixtralForCausalLM True"] * 2 + [""], done.stderr


def test_the_newcomer_alone_contributed_to_version_2(house: House) -> None:
    first, second = (json.loads((version(house, n) / "moerge.json").read_text()) for n in (1, 2))
    assert first["domains"] == ["law", "art"]
    assert second["domains"] == ["law", "art", "code"]
    assert second["trunk"] == first["trunk"]
    assert set(first["contributions"]) < set(second["contributions"])
    assert len(second["contributions"]) == 3


def test_law_1_the_worker_shows_what_leaves_and_sends_nothing_else(house: House) -> None:
    assert "leaving this machine" in house.log("law")
    assert "sums over" in house.log("law")
    held = [path for path in (house.server.home / "blobs").rglob("*") if path.is_file()]
    text = json.loads((house.folder / "law" / "texts.jsonl").read_text().splitlines()[0])["text"]
    key = read_owner_key(house.folder / "law" / "worker" / "law-owner.pem").private_bytes_raw()
    assert not any(secret in path.read_bytes() for path in held for secret in (text.encode(), key))


def test_every_contribution_is_signed_by_its_owner_and_anyone_can_check_it(house: House) -> None:
    with house.server.client() as operator:
        signed = operator.version_signatures(2)
        assert all(row.fingerprint for row in operator.contributions())
    assert {row.owner: row.public_key for row in signed} == {
        f"{domain}-owner": public_key_of(read_owner_key(house.folder / domain / "worker" / f"{domain}-owner.pem"))
        for domain in ("law", "art", "code")
    }
    assert all(row.is_genuine() for row in signed)


def test_a_worker_never_receives_another_owner_s_mlps(house: House) -> None:
    received = [path for path in (house.folder / "law" / "worker" / "trunks").rglob("*") if path.is_file()]
    assert sorted(path.name for path in received) == ["config.json", "trunk.safetensors"]
    with safe_open(next(path for path in received if path.suffix == ".safetensors"), framework="pt") as file:
        assert not any("mlp" in name for name in file.keys())  # noqa: SIM118  # safe_open is not iterable


def test_a_worker_that_runs_again_sends_nothing_again(house: House) -> None:
    before = house.operator("version", "show", "2")
    assert ended(house.start_worker("law"), 120) == 0
    assert house.log("law").count("contributed") == 2
    assert house.operator("version", "solve") == "2"
    assert house.operator("version", "show", "2") == before


def test_a_token_for_another_domain_is_told_so(house: House) -> None:
    home = house.folder / "law"
    command = worker_command("art", home / "expert", home / "texts.jsonl", home / "other-worker")
    worker = start_worker(command, house.server.environment(house.tokens["law"]), home / "other-log")
    assert ended(worker, 120) == 1
    log = (home / "other-log").read_text()
    assert "the token is law-owner's, for law, not for 'art'" in log
    assert "Traceback" not in log


@pytest.mark.slow
def test_a_trunk_that_is_replaced_while_a_worker_computes_costs_one_more_pass(tmp_path: Path) -> None:
    with coordinator(tmp_path / "home") as server:
        house = House(server, tmp_path)
        house.add_owner("law", seed=1)
        worker = house.start_worker("law")
        house.wait_for("law", "waiting for the operator to merge a trunk")
        house.operator("trunk", "merge")
        house.wait_for("law", "the trunk strays")  # Ray starts now, which takes longer than the next merge
        second = house.operator("trunk", "merge", "--method", "weighted", "--weight", "law=2")
        assert ended(worker, 120) == 0
        assert "was replaced meanwhile" in house.log("law")
        assert f"under trunk {second[:12]}" in house.log("law")
        with server.client() as operator:
            assert [each.trunk for each in operator.contributions()] == [second]
