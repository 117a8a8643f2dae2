"""The peer: what it is told, and the peer itself."""

from pathlib import Path

import pytest
import torch

from moerge.errors import MoergeError
from moerge.scoring.perplexity import Rows
from moerge_lab.recipes import peer
from moerge_lab.recipes.base import Domain, Fleet
from moerge_lab.recipes.models import Routed
from support.models import expert, tokenizer

BY_NAME = {recipe.name: recipe for recipe in peer.RECIPES}


def fleet(folder: Path, family: str = "llama", base: Path | None = None) -> Fleet:
    domains = []
    for slot, words in enumerate((["a quick fox", "brown dogs jump", "over it"], ["1 + 1", "22 * 3", "4 / 5"])):
        made = expert(folder / f"e{slot}", slot, family, apart=0.02)
        domains.append(Domain(f"d{slot}", made, [tokenizer()(text)["input_ids"] for text in words]))
    (folder / "work").mkdir()
    return Fleet(domains, base, 0, folder / "work")


def test_it_is_told_the_beginnings_of_each_domain_s_own_documents(tmp_path: Path) -> None:
    options = {"k": 1, "prompts": 2, "tokens": 7}
    built = fleet(tmp_path)
    told = peer.settings(built, tmp_path / "base", "hidden", options)
    assert told == {
        "base_model": str(tmp_path / "base"),
        "gate_mode": "hidden",
        "dtype": "float32",
        "experts_per_token": 1,
        "experts": [
            {"source_model": str(built.domains[0].expert), "positive_prompts": ["a quick", "brown d"]},
            {"source_model": str(built.domains[1].expert), "positive_prompts": ["1 + 1", "22 * 3"]},
        ],
    }


def test_a_command_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(peer.COMMAND, str(tmp_path / "mergekit-moe"))
    recipe = BY_NAME["mergekit-hidden"]
    with pytest.raises(MoergeError, match="no such file") as caught:
        next(recipe.build(fleet(tmp_path), recipe.options))
    assert caught.value.where == "MOERGE_MERGEKIT"


def test_what_a_failing_command_said_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "mergekit-moe"
    command.write_text("#!/bin/sh\necho it has no such model >&2\nexit 3\n")
    command.chmod(0o755)
    monkeypatch.setenv(peer.COMMAND, str(command))
    recipe = BY_NAME["mergekit-hidden"]
    with pytest.raises(MoergeError, match="exit status 3: it has no such model"):
        next(recipe.build(fleet(tmp_path), recipe.options))


@pytest.mark.slow  # the first time it installs mergekit
@pytest.mark.parametrize("gates", ["hidden", "cheap_embed"])
def test_the_peer_s_model_has_its_gates_and_is_scored(tmp_path: Path, gates: str) -> None:
    base = expert(tmp_path / "base", 9, apart=0.02)
    built = fleet(tmp_path, base=base)
    recipe = BY_NAME["mergekit-" + gates.replace("_", "-")]
    rows = []
    for row, model in recipe.build(built, {**recipe.options, "k": 1}):
        rows.append(row)
        assert isinstance(model, Routed)
        found = model.logits(Rows(torch.tensor([[5, 6, 7]]), [3], ""))
        assert bool(found.isfinite().all())
        attention, mlp = 32 * (32 + 16 + 16 + 32), 3 * 32 * 48
        assert model.active_parameters == 3 * (attention + mlp + 2 * 32 + 2 * 32) + 32 + 300 * 32
        if gates == "cheap_embed":  # the prompts' summed embeddings, and the <s> before each, normalised
            table = model.model.get_submodule("model.embed_tokens").get_parameter("weight").detach().double()
            texts = [tokenizer().encode(f"<s>{words}") for words in ("a quick fox", "brown dogs jump", "over it")]
            summed = torch.stack([table[id_] for text in texts for id_ in text]).sum(dim=0)
            gate = model.model.get_submodule("model.layers.2.mlp.gate").get_parameter("weight")
            torch.testing.assert_close(gate[0], (summed / summed.norm()).float(), rtol=1e-4, atol=1e-5)
    assert rows == [recipe.name, f"{recipe.name}, base trunk"]
