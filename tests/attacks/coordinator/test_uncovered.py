"""An owner with a privacy budget: no statistics of its text leave without noise, whatever its expert and defaults."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from moerge.errors import MoergeError
from moerge_proto.statistics_file import StatisticsFile
from moerge_workers.outgoing.history import History
from moerge_workers.settings import Settings
from support.models import expert, keeping_expert, seed_model, texts
from support.stages import POLICY, MemoryClient, registered, run_of

BUDGET: dict[str, Any] = {"privacy": {"epsilon": 2.0}, "fit": None}


@pytest.fixture
def client(tmp_path: Path) -> MemoryClient:
    """A coordinator with a seed; the owner's copy, and its text in a home, are in the folder."""
    (tmp_path / "home").mkdir()
    texts(tmp_path / "home" / "texts.jsonl", 1, 40)
    return MemoryClient(registered(seed_model(tmp_path / "seed"), tmp_path / "registered"))


def ran(folder: Path, client: MemoryClient, policy: dict[str, Any] | None = None, **given: Any) -> list[str]:
    """The kinds of what has left after one run."""
    settings = {**BUDGET, "policy": {**POLICY, **(policy or {})}, **given}
    with run_of(folder, folder / "home", client, **settings) as run:
        run.stages()
    return sent(folder)


def sent(folder: Path) -> list[str]:
    with closing(History(folder / "home")) as history:
        return sorted({sending.item.kind for sending in history.sendings()})


def refusal(folder: Path, client: MemoryClient, policy: dict[str, Any] | None = None, **given: Any) -> tuple[str, str]:
    """A refused kind of data, and the beginning of the remedy."""
    with pytest.raises(MoergeError, match=" would leave without noise: the expert ") as caught:
        ran(folder, client, policy, **given)
    assert (client.uploaded, client.known, sent(folder)) == ([], {}, [])
    return caught.value.what.partition(" would leave")[0], caught.value.todo.partition(" an expert")[0]


def test_an_expert_with_another_body_leaves_with_no_fit_and_no_head_contribution(
    tmp_path: Path, client: MemoryClient
) -> None:
    expert(tmp_path / "expert", 1)
    both = "set fit = false and head_contributions = false in [policy]; or train"
    assert refusal(tmp_path, client) == ("fitted MLPs and a head contribution", both)
    assert refusal(tmp_path, client, fit=False)[0] == "a head contribution"
    assert refusal(tmp_path, client, {"head_contributions": False})[0] == "fitted MLPs"
    assert ran(tmp_path, client, {"head_contributions": False}, fit=False) == ["expert", "router"]
    with StatisticsFile(client.uploaded[-1]) as file:
        assert file.manifest.settings.privacy is not None


def test_an_expert_that_keeps_the_seeds_body_needs_no_settings(tmp_path: Path, client: MemoryClient) -> None:
    keeping_expert(tmp_path / "expert", tmp_path / "seed", 1)
    assert ran(tmp_path, client) == ["expert", "router"]


def test_a_head_of_its_own_needs_one(tmp_path: Path, client: MemoryClient) -> None:
    keeping_expert(tmp_path / "expert", tmp_path / "seed", 1, lm_head__weight=0.1)
    assert refusal(tmp_path, client)[0] == "a head contribution"
    assert ran(tmp_path, client, {"head_contributions": False}) == ["expert", "router"]


def test_mlps_that_were_fitted_before_the_budget_stay(tmp_path: Path, client: MemoryClient) -> None:
    keeping_expert(tmp_path / "expert", tmp_path / "seed", 1)
    ran(tmp_path, client, privacy=None, fit=True, dry_run=True)
    assert list((tmp_path / "home" / "parts").rglob("fitted-*"))
    assert refusal(tmp_path, client)[0] == "fitted MLPs and a head contribution"
    assert refusal(tmp_path, client, fit=False)[0] == "a head contribution"
    assert ran(tmp_path, client, {"head_contributions": False}, fit=False) == ["expert", "router"]


@pytest.mark.parametrize(
    ("change", "need"),
    [
        ({"fit": True}, "fit = false"),
        ({"held_out_share": 0.1, "policy": {"evaluation_sums": True}}, "evaluation_sums = false"),
    ],
)
def test_settings_that_send_other_sums_are_refused(change: dict[str, Any], need: str) -> None:
    fields = {"coordinator": "", "token": "", "domain": "law", "expert": "e", "data": ["d"], "home": "h"}
    given = {**fields, "privacy": {"epsilon": 1.0}, **change}
    with pytest.raises(ValidationError, match=f"privacy needs {need}"):
        Settings.model_validate(given)
