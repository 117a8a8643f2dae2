"""Bodies and versions of local experts."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from moerge.bodies.lineage import BodyOptions
from moerge.errors import MoergeError
from moerge.merging.arguments import base_model
from moerge.merging.local_lineages import given, local_body, local_version
from moerge.merging.recipe import Recipe
from moerge.models.dense import body_names
from moerge.models.expert_folder import DenseExpert
from moerge.models.reader import Checkpoint
from moerge.versions.folder import write_folder
from moerge.versions.version_plan import plan_version
from support.models import expert


def experts(folder: Path, *names: str) -> list[DenseExpert]:
    return [DenseExpert(name, expert(folder / name, seed)) for seed, name in enumerate(names)]


def test_the_seed_s_body_is_its_own_whatever_the_experts(tmp_path: Path) -> None:
    seed, law, art = experts(tmp_path, "seed", "law", "art")
    body = local_body([law, art], tmp_path / "body", "seed", base=seed)
    copied = Checkpoint(body.path)
    assert sorted(copied.specs) == body_names(seed)
    assert all(copied.tensor(name).equal(seed.checkpoint.tensor(name)) for name in copied.specs)
    assert body.contains == []
    assert body.digest == local_body([art], tmp_path / "other", "seed", base=seed).digest
    assert body.digest != local_body([law, art], tmp_path / "body", "seed", base=law).digest


def test_a_version_under_a_seed_s_body_has_the_seed_s_tokenizer_and_licence(tmp_path: Path) -> None:
    seed, law, art = experts(tmp_path, "seed", "law", "art")
    (seed.folder / "generation_config.json").write_text('{"temperature": 0.5}')
    for own, text in ((law, "law's"), (seed, "seed's")):
        (own.folder / "chat_template.jinja").write_text(text)

    def version(base: DenseExpert) -> Path:
        body = local_body([], tmp_path / "body", "seed", base=base)
        made = plan_version(*local_version([law, art], body, [], head="seed"), given([torch.zeros(2, 32)] * 3))
        return write_folder(made.files, tmp_path / f"under-{base.domain}-{base.license}")

    first = version(replace(seed, license="MIT"))
    for name in ("generation_config.json", "tokenizer.json", "chat_template.jinja"):
        assert (first / name).read_bytes() == (seed.folder / name).read_bytes()
    card = (first / "README.md").read_text()
    assert "Tokenizer and generation settings come from the seed.\nThe chat template is that of the seed" in card
    assert "Experts with another one, or none: law, art." in card
    assert "The seed's licence: MIT." in card
    assert "The seed's licence: Apache-2.0." in (version(replace(seed, license="Apache-2.0")) / "README.md").read_text()
    assert not (version(art) / "chat_template.jinja").exists(), "an earlier seed's is gone"
    assert local_version([law], local_body([], tmp_path / "body", "seed", base=seed), [], head="seed")[0].seed


def test_the_base_model_takes_its_licence(tmp_path: Path) -> None:
    [seed] = experts(tmp_path, "seed")
    licences = {"base": "MIT", "law": "Apache-2.0"}
    base = base_model(Recipe(base=str(seed.folder), license=licences))
    assert base is not None
    assert (base.folder, base.license) == (seed.folder, "MIT")
    assert base_model(Recipe(license=licences)) is None


def test_a_seed_s_body_needs_the_seed_and_takes_no_options(tmp_path: Path) -> None:
    seed, law = experts(tmp_path, "seed", "law")
    with pytest.raises(MoergeError, match="needs the seed model") as raised:
        local_body([law], tmp_path / "body", "seed")
    assert raised.value.where == "`base`"
    with pytest.raises(MoergeError, match="doesn't take this option"):
        local_body([law], tmp_path / "body", "seed", options=BodyOptions(weights={"law": 2.0}), base=seed)
    assert not (tmp_path / "body").exists()


def test_a_solved_head_needs_a_contribution_per_expert(tmp_path: Path) -> None:
    law, art = experts(tmp_path, "law", "art")
    body = local_body([law, art], tmp_path / "body", "average")
    with pytest.raises(MoergeError, match="0 head contributions of 2 experts"):
        local_version([law, art], body, [])
    assert local_version([law, art], body, [], head="average")[0].head.contributions == []
    with pytest.raises(MoergeError, match="the seed's head under a body by 'average'"):
        local_version([law, art], body, [], head="seed")
