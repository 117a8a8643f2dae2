"""The model card: what the hub reads, and what it tells people."""

import io
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard
from huggingface_hub.utils._validators import validate_repo_id
from transformers import AutoModelForCausalLM

from moerge.versions.card import (
    ChatTemplates,
    Contributed,
    ExpertRecord,
    Model,
    Origin,
    SeedRecord,
    card_file,
)
from moerge.versions.card_scores import ScoreRow, published_card, recipe_card, scored_card, scores_text
from moerge_proto.recipes import PAPER, RECOMMENDED, SolveOptions
from moerge_proto.versions import EngineLimit, HeadLineage, Lineage
from support.models import expert
from support.versions import published

LAW = ExpertRecord("1" * 64, "law", "firm", "Apache-2.0", hub_id="lab/law")
ART = ExpertRecord("2" * 64, "art", "museum", "apache-2.0", hub_id="lab/art")
KEYS = {"license", "license_name", "library_name", "pipeline_tag", "base_model", "base_model_relation", "tags"}
"""The hub's, of https://github.com/huggingface/hub-docs/blob/main/modelcard.md"""


def fields(text: str) -> dict[str, Any]:
    """The front matter, as the hub's library reads it."""
    content: dict[str, Any] = ModelCard(text).data.to_dict()  # type: ignore[no-untyped-call]
    return content


def card(
    experts: tuple[ExpertRecord, ...] = (LAW, ART),
    options: SolveOptions = RECOMMENDED.solve,
    limits: Sequence[EngineLimit] = (),
    origin: Origin | None = None,
    **lineage: Any,
) -> str:
    made = Lineage(
        body="3" * 64,
        experts=[item.digest for item in experts],
        domains=[item.domain for item in experts],
        options=options,
        solver="ridge-3",
        **{"head": HeadLineage(method="regmean"), "contributions": ["4" * 64], **lineage},
    )
    sent = [Contributed(digest, "law", "firm", 1000, 10) for digest in made.contributions]
    chat, model = ChatTemplates("law", "", {"law": "", "art": ""}), Model("MixtralForCausalLM", "bfloat16", 5000, 3000)
    out = io.BytesIO()
    card_file(made, experts, origin or Origin("regmean", experts, None, 64), sent, chat, model, limits).write(out)
    return out.getvalue().decode()


def test_the_hub_s_fields_are_known_and_true() -> None:
    data = fields(card())
    assert data.keys() <= KEYS
    assert (data["license"], data["library_name"], data["pipeline_tag"]) == (
        "apache-2.0", "transformers", "text-generation",
    )  # fmt: skip
    assert (data["base_model"], data["base_model_relation"]) == (["lab/law", "lab/art"], "merge")
    for name in data["base_model"]:
        validate_repo_id(name)
    assert {"moe", "merge", "moerge"} <= set(data["tags"])
    local = fields(card((LAW._replace(hub_id=None), ART._replace(hub_id=None))))
    assert not local.keys() & {"base_model", "base_model_relation"}


@pytest.mark.parametrize(
    ("licenses", "shown"),
    [
        (("MIT", "MIT"), ("mit", None)),
        (("GPL-3.0-only", "gpl-3.0-only"), ("gpl-3.0", None)),
        (("LicenseRef-House+1", "LicenseRef-House+1"), ("other", "licenseref-house-1")),
        (("MIT", "Apache-2.0"), ("other", None)),
        (("unknown", "unknown"), ("unknown", None)),
    ],
)
def test_a_licence_that_the_hub_does_not_know_is_other(
    licenses: tuple[str, str], shown: tuple[str, str | None]
) -> None:
    made = card((LAW._replace(license=licenses[0]), ART._replace(license=licenses[1])))
    assert (fields(made)["license"], fields(made).get("license_name")) == shown
    assert f"| 0 | law | firm | {licenses[0]} |" in made


def test_the_routers_and_mlps_are_told_as_they_are() -> None:
    assert "Safety is not inherited" in card()
    assert "linear discriminants, lambda = 0.001 x mean diagonal, domains balanced; `ridge-3`" in card()
    assert "ridge regression, lambda = 0.01, domains weighted by their tokens; `ridge-3`" in card(options=PAPER.solve)
    warm = SolveOptions(top_k=2, temperature=0.5, domain_weights={"law": 2.0}, lambda_scale="auto")
    row = "lambda = the best of each layer on the tuning splits, tokens weighted by domain: law 2, temperature = 0.5"
    assert row in card(options=warm)
    assert "| experts per token | 2 of 2 |" in card(options=warm)
    assert "| routers | not solved from contributions |" in card(contributions=[])
    assert "| MLPs | the experts' own, unchanged |" in card()
    fitted = LAW._replace(parts_of="5" * 64, fitted=True)
    assert "| MLPs | fitted to the body: law; all others unchanged |" in card((fitted, ART))
    assert f"`, fitted MLPs and head of `{'5' * 64}`" in card((fitted, ART))


def test_body_and_head_have_their_origin() -> None:
    merged = card()
    assert "| merged from 2 experts by the method `regmean` |" in merged
    assert "| least squares on owners' grams; separate from the embedding, 64 parameters |" in merged
    assert "which contains parameters of:" in merged
    own = card(origin=Origin("seed", (), SeedRecord("org/seed@1", "MIT"), 0), head=HeadLineage(method="seed"))
    assert "| that of org/seed@1, unchanged |" in own
    assert "| the seed's own, unchanged; the embedding |" in own
    assert f"`{'3' * 64}`, which contains no expert's parameters. The seed's licence: MIT.\n" in own
    assert (fields(own)["license"], fields(own)["base_model"]) == ("other", ["org/seed", "lab/law", "lab/art"])
    same = card(origin=Origin("seed", (), SeedRecord("seed", "apache-2.0"), 0), head=HeadLineage(method="seed"))
    assert (fields(same)["license"], fields(same)["base_model"]) == ("apache-2.0", ["lab/law", "lab/art"])


def test_only_limits_of_engines_have_a_section() -> None:
    limit = EngineLimit(engine="vLLM", happens="ignores all biases", remedy="use another engine")
    section = "\n## Engines\n\n- **vLLM** ignores all biases. To avoid it: use another engine.\n\n## Scores\n"
    assert section in (made := card(limits=[limit]))
    assert made.replace(section, "\n## Scores\n") == card()


def test_parameters_are_those_of_the_loaded_model(tmp_path: Path) -> None:
    folder = published([expert(tmp_path / str(seed), seed) for seed in (1, 2, 3)], tmp_path, top_k=2)
    counts = {name: item.numel() for name, item in AutoModelForCausalLM.from_pretrained(folder).named_parameters()}
    mlps = sum(count for name, count in counts.items() if ".experts." in name)
    total = sum(counts.values())
    text = (folder / "README.md").read_text()
    assert f"| parameters | {total:,} in total, {total - mlps // 3:,} active per token |" in text
    assert "| architecture | `MixtralForCausalLM`, float32 |" in text


def test_scores_come_later_and_number_and_date_with_them() -> None:
    made, rows = card(), [ScoreRow("law", 100, 5.0, 8.0, 62.5)]
    table = scores_text("on held-out documents", rows, None, ["art"])
    scored = scored_card(made, table)
    assert "| law | 100 | 5.00 | 8.00 | 62.5 |\n\nNo scores of: art.\n\n## Experts\n" in scored
    assert "Scores are measured later" in made
    assert "Scores are measured later" not in scored
    assert scored_card(scored, table) == scored
    assert scored_card(made, scores_text("on nothing", [], None, ["law"])) == made
    named = recipe_card(recipe_card(scored, "old.yaml", "b" * 64), "merge.yaml", "a" * 64)
    sentence = f" The options of the merge are in `merge.yaml`, SHA-256 `{'a' * 64}`.\n"
    assert named == scored.removesuffix("\n") + sentence
    whole = published_card(made, "3", datetime(2026, 11, 23, tzinfo=UTC), "> Art was withdrawn.\n\n", table)
    top = "# Mixture of 2 experts: law, art\n\n> Art was withdrawn.\n\nVersion 3, published on 2026-11-23. "
    assert f"{top}Fetch it with `moerge pull 3 my-model`.\n\n" in whole
    assert fields(whole) == fields(made)
