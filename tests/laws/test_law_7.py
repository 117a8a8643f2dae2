"""Law 7: a new version costs only its routers. Files of earlier versions are found by their keys, and reused."""

from pathlib import Path

import pytest
import torch

from moerge.models.dense_files import DenseFiles
from moerge.models.families import FAMILIES
from moerge.versions.file_plans import body_files, expert_file, router_file
from moerge.versions.plan import VersionPlan
from support.lineages import DOMAINS, Group, planned
from support.models import expert

ALL: list[Group] = [(domain, range(4)) for domain in DOMAINS]
SOLVED = {"model-router.safetensors", "moerge-report.json", "moerge.json", "README.md"}


def written_anew(plan: VersionPlan, *before: VersionPlan) -> set[str]:
    """Names of the files whose keys are new."""
    known = {file.key for item in before for file in item.files}
    return {file.name for file in plan.files if file.key not in known}


def test_law_7_new_statistics_or_options_change_only_routers(tmp_path: Path) -> None:
    less: list[Group] = [("law", range(3)), *ALL[1:]]
    assert written_anew(planned(tmp_path, ALL, DOMAINS), planned(tmp_path, less, DOMAINS)) == SOLVED


def test_law_7_an_appended_expert_adds_its_own_file(tmp_path: Path) -> None:
    two, three = planned(tmp_path, ALL[:2], DOMAINS[:2]), planned(tmp_path, ALL, DOMAINS)
    size = {"config.json", "model.safetensors.index.json"}  # they count the experts
    assert written_anew(three, two) == {"model-expert-00002.safetensors", *SOLVED, *size}


def test_law_7_removing_an_expert_rewrites_only_moved_slots(tmp_path: Path) -> None:
    three = planned(tmp_path, ALL, DOMAINS)
    without = [domain for domain in DOMAINS if domain != DOMAINS[1]]
    anew = written_anew(planned(tmp_path, [ALL[0], ALL[2]], without), three)
    assert {name for name in anew if name.startswith("model-")} == {
        "model-expert-00001.safetensors", "model-router.safetensors",
    }  # fmt: skip


@pytest.mark.parametrize("change", ["lineage", "body", "expert", "slot"])
def test_law_7_a_file_s_key_changes_with_what_it_is_made_of(tmp_path: Path, change: str) -> None:
    """A file with an equal key is reused, so every difference must change the key."""
    folder = expert(tmp_path / "expert", seed=1, tie_word_embeddings=True)
    own, llama = DenseFiles(folder), FAMILIES["llama"]

    def keys(lineage: str = "0", body: str = "1", expert_digest: str = "2", slot: int = 0) -> list[str]:
        routers = router_file(list, 2, (2, 6), llama, torch.float32, lineage)
        bodies = body_files(own, body, body)
        made = [routers, *bodies, expert_file(own.checkpoint, llama, 3, slot, expert_digest)]
        return [plan.key for plan in made]

    other, places = {
        "lineage": (keys(lineage="9"), {0}),
        "body": (keys(body="9"), {1, 2}),
        "expert": (keys(expert_digest="9"), {3}),
        "slot": (keys(slot=1), {3}),
    }[change]
    same = keys()
    assert {place for place in range(4) if same[place] != other[place]} == places
    assert len({*same}) == 4
