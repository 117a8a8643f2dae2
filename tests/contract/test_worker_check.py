"""`moerge worker check`: its lines and exit status."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moerge import __version__
from moerge_workers.check import checks
from moerge_workers.outgoing import owner_key
from moerge_workers.settings import Settings
from support.federation import Federation, federation_of
from support.models import expert, seed_model
from support.processes import moerge
from support.wrappers import wrapper


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with federation_of(tmp_path_factory.mktemp("worker-check"), "law") as federation:
        (federation.folder / "data").mkdir()
        text = "".join(json.dumps({"text": f"document {number} of the law"}) + "\n" for number in range(3000))
        (federation.folder / "data" / "a.jsonl").write_text(text)
        yield federation


def options_of(federation: Federation, **options: object) -> dict[str, object]:
    return {
        "domain": "law",
        "seed": federation.seed,
        "expert": federation.members["law"].folder,
        "data": federation.folder / "data",
        "home": federation.folder / "worker",
        "coordinator": federation.server.url,
        "token": federation.members["law"].token,
        **options,
    }


def lines_of(federation: Federation, **options: Any) -> dict[str, str]:
    """Check -> its line. So many slots have no room, so there is no probe in Ray."""
    given = options_of(federation, slots=10**6, **options)
    settings = Settings.model_validate({**given, "data": [str(given["data"])]})
    return {line.name: str(line) for line in reversed(list(checks(settings)))}


def test_a_worker_that_can_start_has_ok_on_every_line(federation: Federation) -> None:
    options = options_of(federation, held_out_share=0.2)
    words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    shown = moerge("worker", "check", *words, "--fit").splitlines()
    lines = {line.split()[1]: line for line in shown}
    assert "fitting MLPs needs" in lines["memory"]
    names = "expert data seed disk memory Ray pass coordinator clock token key body fleet budget"
    assert list(lines) == names.split()
    assert all(line.startswith("ok ") for line in shown)
    assert "llama, H 32, 3 layers" in lines["expert"]
    for part in ("2,000 documents read", "held-out", "in all about"):
        assert part in lines["data"]
    assert "tokens/s through all layers" in lines["Ray"]
    assert "tokens in 1 window, " in lines["pass"]
    assert "plain HTTP on this machine" in lines["coordinator"]
    assert __version__ in lines["coordinator"]
    assert "law-owner's" in lines["token"]
    assert list(federation.members["law"].client.contributions()) == []


def test_every_problem_is_shown_at_once(federation: Federation, tmp_path: Path) -> None:
    (tmp_path / "texts.jsonl").write_text('{"text": "one"}\nno JSON\n')
    other, home = expert(tmp_path / "other", 2, num_hidden_layers=2), tmp_path / "worker"
    home.mkdir()
    owner_key.join_request(home / "law-owner.pem", "law-owner", ["law"])
    lines = lines_of(federation, expert=other, data=tmp_path / "texts.jsonl", home=home)
    bad = {name for name, line in lines.items() if line.startswith("no ")}
    assert bad == {"seed", "data", "memory", "key", "body"}, lines
    assert "texts.jsonl, line 2" in lines["data"]
    assert "`slots` 500000" in lines["memory"]
    assert "not approved" in lines["key"]
    assert "num_hidden_layers is 2" in lines["seed"]
    assert all("what to do:" in lines[name] for name in bad)


def test_too_few_documents_of_another_domain_are_problems(federation: Federation, tmp_path: Path) -> None:
    (tmp_path / "few.jsonl").write_text("".join(f'{{"text": "document {n} of few"}}\n' for n in range(5)))
    home = tmp_path / "worker-cookin"
    lines = lines_of(federation, data=tmp_path / "few.jsonl", home=home, domain="cookin")
    assert "too little data: 5 documents; the policy's min_documents is 1,000" in lines["data"]
    assert "not for 'cookin'" in lines["token"]
    assert not home.exists()


def test_the_fleet_line_says_what_registering_would_do(federation: Federation, tmp_path: Path) -> None:
    other = expert(tmp_path / "other", 2)
    for expected, options in (
        ("already registered", {}),
        ("the policy forbids sending expert weights", {"expert": other, "policy": {"expert_weights": False}}),
        ("only the expert's parts leave, ", {"expert": other}),
    ):
        assert expected in lines_of(federation, **options)["fleet"]


def test_the_seed_s_body_is_compared_with_the_own_copy(federation: Federation, tmp_path: Path) -> None:
    home = tmp_path / "worker"
    right = lines_of(federation, home=home)
    wrong = lines_of(federation, home=home, seed=expert(tmp_path / "other", 5))
    assert "config and tokenizer are the expert's" in right["seed"]
    assert "your seed's, byte for byte" in right["body"]
    assert "its parts are already registered" in right["fleet"]
    assert "another revision of the seed, or forged" in wrong["body"]
    assert not home.exists()
    assert "your own copy of the seed isn't set" in lines_of(federation, seed=None)["seed"]


def test_the_privacy_line_names_budget_and_what_is_not_covered(federation: Federation, tmp_path: Path) -> None:
    given: dict[str, Any] = {"seed": federation.members["law"].folder}
    lines = lines_of(federation, privacy={"epsilon": 0.001}, **given)
    assert "epsilon 0.001, delta 1e-06 for each document; 0 of 0 documents with noise have spent it" in lines["privacy"]
    assert "the expert's weights have no noise" in lines["privacy"]
    given["seed"] = seed_model(tmp_path / "seed")
    line = lines_of(federation, privacy={"epsilon": 1.0}, **given)["privacy"]
    assert line.startswith("no ")
    assert "fitted MLPs and a head contribution would leave without noise" in line


def test_an_evaluation_needs_memory_for_the_newest_version(federation: Federation) -> None:
    options = {"held_out_share": 0.2, "policy": {"evaluation_sums": True}}
    assert "no version yet" in lines_of(federation, **options)["evaluation"]
    federation.contribute(federation.body(), "law")
    federation.solve()
    line = lines_of(federation, **options)["evaluation"]
    assert "ok evaluation   version 1 has 1 experts; scoring needs " in line
    assert "of host memory for the hidden states of 4,096 tokens" in line


def test_a_missing_file_stops_only_its_own_checks(federation: Federation, tmp_path: Path) -> None:
    lines = lines_of(federation, expert=tmp_path, data=tmp_path / "nothing.jsonl", domain="art")
    assert {name: line[:2] for name, line in lines.items()} == {
        "expert": "no",
        "data": "no",
        "coordinator": "ok",
        "clock": "ok",
        "token": "no",
    }
    assert "not for 'art'" in lines["token"]


def test_the_command_ends_with_1_if_a_line_says_no(federation: Federation, tmp_path: Path) -> None:
    words = [f"--{name}={value}" for name, value in options_of(federation, expert=tmp_path, coordinator="").items()]
    with pytest.raises(AssertionError, match=r"config\.json: not found"):
        moerge("worker", "check", *words)


def test_a_missing_or_unencrypted_coordinator_is_one_line(federation: Federation) -> None:
    assert set(lines_of(federation, coordinator="", token="")) == {"expert", "seed", "data", "disk", "memory"}
    absent = lines_of(federation, coordinator="http://127.0.0.1:1")
    assert ("no answer" in absent["coordinator"], "token" in absent) == (True, False)
    assert "not encrypted" in lines_of(federation, coordinator="http://example.org")["coordinator"]


def test_the_line_of_an_expert_names_what_is_left_out(federation: Federation, tmp_path: Path) -> None:
    wrapper(tmp_path / "expert", "mistral3")
    line = lines_of(federation, expert=tmp_path / "expert")["expert"]
    assert "; only its text model is read, mistral; left out: projector (4 tensors, " in line
