"""Law 7: a new version costs only its routers and head. Files of earlier versions are found by their keys."""

from pathlib import Path

import pytest
import torch

from moerge.bodies.heads import HeadInputs
from moerge.models.dense_files import DenseFiles
from moerge.models.families.registry import FAMILIES
from moerge.versions.file_plan import body_files, expert_file, head_file, router_file
from moerge.versions.version_plan import VersionPlan
from moerge_proto.bodies import HeadMethod
from moerge_proto.recipes import SolveOptions
from moerge_proto.version_files import FUSED_FILE, HEAD_FILE
from moerge_proto.versions import HeadLineage, Lineage
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


def test_law_7_a_new_head_changes_no_body_and_expert(tmp_path: Path) -> None:
    average = planned(tmp_path, ALL, DOMAINS, "average")
    assert written_anew(average, planned(tmp_path, ALL, DOMAINS)) <= {HEAD_FILE, *SOLVED}


def test_law_7_an_appended_expert_adds_its_file_and_a_head(tmp_path: Path) -> None:
    two, three = planned(tmp_path, ALL[:2], DOMAINS[:2]), planned(tmp_path, ALL, DOMAINS)
    size = {"config.json", "model.safetensors.index.json"}  # they count the experts
    assert written_anew(three, two) == {"model-expert-00002.safetensors", HEAD_FILE, *SOLVED, *size}


def test_law_7_removing_an_expert_rewrites_only_moved_slots(tmp_path: Path) -> None:
    three = planned(tmp_path, ALL, DOMAINS)
    without = [domain for domain in DOMAINS if domain != DOMAINS[1]]
    anew = written_anew(planned(tmp_path, [ALL[0], ALL[2]], without), three)
    assert {name for name in anew if name.startswith("model-")} == {
        "model-expert-00001.safetensors", "model-router.safetensors", HEAD_FILE,
    }  # fmt: skip


def test_law_7_fused_experts_share_all_but_their_one_file(tmp_path: Path) -> None:
    """In classes with one tensor for all experts of a layer, a new expert rewrites all MLPs, and nothing else does."""
    two, three = (planned(tmp_path, ALL[:n], DOMAINS[:n], family="granite") for n in (2, 3))
    size = {"config.json", "model.safetensors.index.json"}
    assert written_anew(three, two) == {FUSED_FILE, HEAD_FILE, *SOLVED, *size}
    less: list[Group] = [("law", range(3)), *ALL[1:]]
    assert written_anew(planned(tmp_path, less, DOMAINS, family="granite"), three) == SOLVED
    average = planned(tmp_path, ALL, DOMAINS, "average", "granite")
    assert written_anew(average, three) <= {HEAD_FILE, *SOLVED}
    turned = planned(tmp_path, ALL, DOMAINS[::-1], family="granite")
    assert FUSED_FILE in written_anew(turned, three)


@pytest.mark.parametrize("change", ["lineage", "body", "expert", "slot", "head"])
def test_law_7_a_file_s_key_changes_with_what_it_is_made_of(tmp_path: Path, change: str) -> None:
    """A file with an equal key is reused, so every difference must change the key."""
    folder = expert(tmp_path / "expert", seed=1, tie_word_embeddings=True)
    own, llama = DenseFiles(folder), FAMILIES["llama"]

    def keys(
        lineage: str = "0", body: str = "1", expert_digest: str = "2", slot: int = 0, head: HeadMethod = "average"
    ) -> list[str]:
        routers = router_file(list, torch.ones(2, 6), range(2), 2, llama.host, torch.float32, lineage)
        [whole] = body_files(own, body, body)
        mlps = expert_file(own.checkpoint, llama, range(3), slot, expert_digest)
        inputs = HeadInputs([own.checkpoint], tuple, None, own, as_embedding=True)
        return [
            plan.key for plan in (routers, whole, head_file(_lineage(body, expert_digest, head), inputs, own), mlps)
        ]

    other, places = {
        "lineage": (keys(lineage="9"), {0}),
        "body": (keys(body="9"), {1, 2}),
        "expert": (keys(expert_digest="9"), {2, 3}),
        "slot": (keys(slot=1), {3}),
        "head": (keys(head="regmean"), {2}),
    }[change]
    same = keys()
    assert {place for place in range(4) if same[place] != other[place]} == places
    assert len({*same}) == 4


def _lineage(body: str, expert_digest: str, head: HeadMethod) -> Lineage:
    return Lineage(
        body=64 * body,
        head=HeadLineage(method=head),
        experts=[64 * expert_digest],
        domains=["law"],
        contributions=[],
        options=SolveOptions(),
        tied=False,
        solver="one",
    )
