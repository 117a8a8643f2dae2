"""The chat template of a merged version: the default, a chosen one, and who has others."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from moerge.errors import MoergeError
from moerge.merging.kept_statistics import kept
from moerge.merging.merge import MergeSettings, merge
from moerge.models.expert_folder import DenseExpert
from moerge_proto.recipes import PAPER, VersionRecipe
from moerge_proto.records import RECORD_FILE
from moerge_proto.version_files import CARD_FILE, GENERATION, TEMPLATE, TOKENIZER
from support.merging import SMALL, files, source
from support.models import expert, texts

SETTINGS = MergeSettings(recipe=PAPER, scored_tokens=0, keep_statistics=True)
LAW, ART, BASE = "law's {{ messages }}", "art's {{ messages }}", "the base's {{ messages }}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Experts: law with a template of its own file, art with one in its tokenizer's settings, code without; a base."""
    root = tmp_path_factory.mktemp("chat")
    for seed, domain in enumerate(("law", "art", "code", "base"), 1):
        expert(root / domain, seed, **SMALL)
        texts(root / f"{domain}.jsonl", seed, documents=30)
    (root / "law" / TEMPLATE).write_text(LAW)
    (root / "base" / TEMPLATE).write_text(BASE)
    fields = json.loads((root / "art" / TOKENIZER).read_text())
    (root / "art" / TOKENIZER).write_text(json.dumps({**fields, "chat_template": ART}))
    (root / "art" / GENERATION).write_text('{"eos_token_id": 7}')
    return root


def merged(folder: Path, out: Path, *domains: str, **how: object) -> list[str]:
    """Merges the experts, or the last one into the version `to`; the report's warnings."""
    to, settings = how.pop("to", None), replace(SETTINGS, **how)  # type: ignore[arg-type]
    version = kept(to) if isinstance(to, Path) else None
    return merge([source(folder, domain) for domain in domains], out, settings, version=version).warnings


def template(version: Path) -> str:
    own = version / TEMPLATE
    return own.read_text() if own.is_file() else json.loads((version / TOKENIZER).read_text()).get("chat_template", "")


def test_by_default_it_is_the_first_expert_s_and_the_lineage_says_nothing(folder: Path, tmp_path: Path) -> None:
    [warning] = merged(folder, tmp_path / "law", "law", "art", "code")
    assert warning == (
        "the chat template is that of the expert of law; experts with another one, or none: art, code. "
        "`chat_template` chooses"
    )
    merged(folder, tmp_path / "auto", "law", "art", "code", chat_template="auto")
    assert files(tmp_path / "auto") == files(tmp_path / "law")
    assert template(tmp_path / "law") == LAW
    assert "chat_template" not in json.loads((tmp_path / "law" / RECORD_FILE).read_text())
    [warning] = merged(folder, tmp_path / "code", "code", "law")
    assert warning == (
        "no chat template, because the expert of code has none; experts with one: law. `chat_template` chooses"
    )
    assert template(tmp_path / "code") == ""


def test_a_chosen_one_comes_with_tokenizer_and_generation_config(folder: Path, tmp_path: Path) -> None:
    [warning] = merged(folder, tmp_path / "out", "law", "art", chat_template="art")
    assert warning.startswith("the chat template is that of the expert of art; experts with another one, or none: law.")
    assert template(tmp_path / "out") == ART
    assert json.loads((tmp_path / "out" / GENERATION).read_text()) == {"eos_token_id": 7}
    card = (tmp_path / "out" / CARD_FILE).read_text()
    assert "Tokenizer and generation settings come from the expert of art.\n" in card
    merged(folder, tmp_path / "auto", "law", "art")
    default, chosen = files(tmp_path / "auto"), files(tmp_path / "out")
    differ = {name for name in default | chosen if default.get(name) != chosen.get(name)}
    assert differ == {TEMPLATE, TOKENIZER, GENERATION, CARD_FILE, RECORD_FILE}


def test_an_addition_keeps_the_choice_unless_it_has_its_own(folder: Path, tmp_path: Path) -> None:
    merged(folder, tmp_path / "two", "law", "art", chat_template="art")
    merged(folder, tmp_path / "three", "code", to=tmp_path / "two")
    assert template(tmp_path / "three") == ART
    merged(folder, tmp_path / "auto", "code", to=tmp_path / "two", chat_template="auto")
    assert template(tmp_path / "auto") == LAW
    assert [item.domain for item in kept(tmp_path / "three").record.experts] == ["law", "art", "code"]


@pytest.mark.parametrize(
    "recipe",
    [
        PAPER.model_copy(update={"body": "seed", "head": "seed"}),
        PAPER.model_copy(update={"body": "ties"}),
    ],
    ids=["seed", "ties"],
)
def test_the_base_s_may_be_chosen(folder: Path, tmp_path: Path, recipe: VersionRecipe) -> None:
    how = {"recipe": recipe, "base": DenseExpert("base", folder / "base"), "fit": False}
    [warning] = merged(folder, tmp_path / "two", "law", "art", chat_template="base", **how)
    owner = "the seed" if recipe.body == "seed" else "the base model"
    assert warning.startswith(f"the chat template is that of {owner}; experts with another one, or none: law, art.")
    assert template(tmp_path / "two") == BASE
    merged(folder, tmp_path / "three", "code", to=tmp_path / "two", fit=False)
    assert template(tmp_path / "three") == BASE


@pytest.mark.parametrize(
    ("domains", "name", "problem", "todo"),
    [
        (("law", "art", "code"), "code", "'code' has no chat template", "name one with a chat template: law, art"),
        (("law", "code"), "base", "no model is named 'base'", "name one with a chat template: law"),
        (("code",), "code", "'code' has no chat template", "omit it: no model has one"),
    ],
)
def test_a_model_without_one_is_refused_before_work(
    folder: Path, tmp_path: Path, domains: tuple[str, ...], name: str, problem: str, todo: str
) -> None:
    sources = [source(folder, domain) for domain in domains]
    if len(sources) == 1:
        sources.append(replace(sources[0], expert=DenseExpert("other", folder / "code")))
    with pytest.raises(MoergeError) as caught:
        merge(sources, tmp_path / "out", replace(SETTINGS, chat_template=name))
    assert (caught.value.what, caught.value.where, caught.value.todo) == (problem, "`chat_template`", todo)
    assert not (tmp_path / "out").exists()
