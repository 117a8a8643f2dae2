"""The main job with real processes: two owners' workers, a version, then a third owner under the same trunk."""

import json
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest
from safetensors import safe_open

from moerge_proto.signatures import public_key_of
from moerge_workers.leaving.owner_key import read_owner_key
from support.federation import Federation, Member, eventually, federation_of
from support.models import expert, texts
from support.processes import ended, moerge, start_worker, worker_command

LOAD = """
import sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
for folder in sys.argv[1:]:
    model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    ids = AutoTokenizer.from_pretrained(folder)("some text", return_tensors="pt").input_ids
    print(type(model).__name__, bool(torch.isfinite(model(ids).logits).all()))
"""


def add_owner(federation: Federation, domain: str, seed: int) -> None:
    """An owner with a key of its own, an expert and texts."""
    place, name = federation.folder / domain, f"{domain}-owner"
    expert(place / "expert", seed)
    texts(place / "texts.jsonl", seed, documents=150)
    (place / "worker").mkdir(mode=0o755)
    request = moerge("worker", "init", "--owner", name, "--domain", domain, "--home", place / "worker")
    token = federation.moerge("owner", "approve", request)
    federation.enter(Member(name, domain, token, federation.server.client(token), place / "expert"))


def started(federation: Federation, domain: str) -> ForkServerProcess:
    place = federation.folder / domain
    command = worker_command(domain, place / "expert", place / "texts.jsonl", place / "worker")
    environment = federation.server.environment(federation.members[domain].token)
    return start_worker(command, environment, place / "log")


def log(federation: Federation, domain: str) -> str:
    return (federation.folder / domain / "log").read_text()


def wait_for(federation: Federation, domain: str, text: str) -> None:
    eventually(lambda: text in log(federation, domain), 120)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """After the whole flow: version 1 of law and art, version 2 with code too."""
    with federation_of(tmp_path_factory.mktemp("main-flow")) as made:
        for seed, domain in enumerate(("law", "art", "code"), start=1):
            add_owner(made, domain, seed)
        workers = []
        for domain in ("law", "art"):  # one after the other, so that the slots' order is known
            workers.append(started(made, domain))
            wait_for(made, domain, "waiting for the first trunk; the operator makes it by: moerge trunk merge")
        made.moerge("trunk", "merge")
        assert [ended(worker, 120) for worker in workers] == [0, 0]
        assert made.moerge("version", "solve") == "1"
        assert ended(started(made, "code"), 120) == 0
        assert made.moerge("version", "solve") == "2"
        yield made


def test_law_6_stock_transformers_loads_versions_in_a_process_of_its_own(federation: Federation) -> None:
    done = subprocess.run(  # noqa: S603  # our own script
        [sys.executable, "-c", LOAD, federation.version(1), federation.version(2)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split("\n") == ["MixtralForCausalLM True"] * 2 + [""], done.stderr


def test_the_newcomer_alone_contributed_to_version_2(federation: Federation) -> None:
    first, second = (json.loads((federation.version(n) / "moerge.json").read_text()) for n in (1, 2))
    assert first["domains"] == ["law", "art"]
    assert second["domains"] == ["law", "art", "code"]
    assert second["trunk"] == first["trunk"]
    assert set(first["contributions"]) < set(second["contributions"])
    assert len(second["contributions"]) == 3


def test_law_1_the_worker_shows_what_leaves_and_sends_nothing_else(federation: Federation) -> None:
    assert "leaving this machine" in log(federation, "law")
    assert "sums over" in log(federation, "law")
    held = [path for path in (federation.server.home / "blobs").rglob("*") if path.is_file()]
    text = json.loads((federation.folder / "law" / "texts.jsonl").read_text().splitlines()[0])["text"]
    key = read_owner_key(federation.folder / "law" / "worker" / "law-owner.pem").private_bytes_raw()
    assert not any(secret in path.read_bytes() for path in held for secret in (text.encode(), key))


def test_a_worker_s_home_is_for_its_user_alone(federation: Federation) -> None:
    """Also one that is there before, for all to read."""
    home = federation.folder / "law" / "worker"
    open_to_others = [path.name for path in (home, *home.rglob("*")) if path.stat().st_mode & 0o077]
    assert open_to_others == []


def test_every_contribution_is_signed_by_its_owner_and_anyone_can_check_it(federation: Federation) -> None:
    signed = federation.operator.version_signatures(2)
    assert all(row.fingerprint for row in federation.operator.contributions())
    assert {row.owner: row.public_key for row in signed} == {
        f"{domain}-owner": public_key_of(read_owner_key(federation.folder / domain / "worker" / f"{domain}-owner.pem"))
        for domain in ("law", "art", "code")
    }
    assert all(row.is_genuine() for row in signed)


def test_a_worker_never_receives_another_owner_s_mlps(federation: Federation) -> None:
    received = [path for path in (federation.folder / "law" / "worker" / "trunks").rglob("*") if path.is_file()]
    assert sorted(path.name for path in received) == ["config.json", "trunk.safetensors"]
    with safe_open(next(path for path in received if path.suffix == ".safetensors"), framework="pt") as file:
        assert not any("mlp" in name for name in file.keys())  # noqa: SIM118  # safe_open is not iterable


def test_a_worker_that_runs_again_sends_nothing_again(federation: Federation) -> None:
    before = federation.moerge("version", "show", "2")
    assert ended(started(federation, "law"), 120) == 0
    assert log(federation, "law").count("contributed") == 2
    assert federation.moerge("version", "solve") == "2"
    assert federation.moerge("version", "show", "2") == before


def test_a_token_for_another_domain_is_told_so(federation: Federation) -> None:
    home = federation.folder / "law"
    command = worker_command("art", home / "expert", home / "texts.jsonl", home / "other-worker")
    worker = start_worker(command, federation.server.environment(federation.members["law"].token), home / "other-log")
    assert ended(worker, 120) == 1
    log = (home / "other-log").read_text()
    assert "the token is law-owner's, for law, not for 'art'" in log
    assert "Traceback" not in log


@pytest.mark.slow
def test_a_trunk_that_is_replaced_while_a_worker_computes_costs_one_more_pass(tmp_path: Path) -> None:
    with federation_of(tmp_path) as federation:
        add_owner(federation, "law", seed=1)
        worker = started(federation, "law")
        wait_for(federation, "law", "waiting for the first trunk; the operator makes it by: moerge trunk merge")
        federation.moerge("trunk", "merge")
        wait_for(federation, "law", "the trunk strays")  # Ray starts now, which takes longer than the next merge
        second = federation.moerge("trunk", "merge", "--method", "weighted", "--weight", "law=2")
        assert ended(worker, 120) == 0
        assert "was replaced meanwhile" in log(federation, "law")
        assert f"under trunk {second[:12]}" in log(federation, "law")
        assert [each.trunk for each in federation.operator.contributions()] == [second]
