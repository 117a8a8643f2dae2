"""Tokenizers are compared by the ids that they give, however their files are written."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from moerge.errors import CheckpointError, IncompatibleExpertError
from moerge.models.dense_files import DenseFiles
from moerge.models.expert_folder import check_expert
from moerge.models.rows import tokens_without_row
from moerge.models.side_files import published_generation, published_tokenizer, tokenizer_settings
from moerge.models.tokenizer_probes import compared, difference
from moerge.models.tokenizers import require_same_tokenizer
from moerge_proto.version_files import GENERATION, TOKENIZER
from support.models import expert

Json = dict[str, Any]
MERGES = [("t", "h"), ("th", "e"), ("i", "n"), ("7", "7")]


@pytest.fixture(scope="module")
def seed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny expert whose tokenizer has a few merges, 16 rows more than tokens, and a chat's marks."""
    folder = expert(tmp_path_factory.mktemp("seed") / "seed", 1, num_hidden_layers=1, vocab_size=280)
    alphabet = {char: id_ for id_, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merged = {"".join(pair): 256 + place for place, pair in enumerate(MERGES)}
    made = Tokenizer(BPE(vocab=alphabet | merged, merges=MERGES))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    own = PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>")
    own.add_tokens(["<|chat|>", "<|end|>"])
    own.save_pretrained(folder)
    return folder


def edited(folder: Path, edit: Callable[[Json], object], name: str = "tokenizer.json") -> None:
    content = json.loads((folder / name).read_text())
    edit(content)
    (folder / name).write_text(json.dumps(content))


def changed(folder: Path, seed: Path, edit: Callable[[Json], object], name: str = "tokenizer.json") -> DenseFiles:
    """A copy of the seed with another file."""
    shutil.copytree(seed, folder / "copy")
    edited(folder / "copy", edit, name)
    return DenseFiles(folder / "copy")


def pieces(content: Json, **settings: object) -> None:
    """Settings of the part that splits texts into bytes."""
    content["pre_tokenizer"].update(settings)


def digits(content: Json) -> None:
    """Splits numbers into digits, of which two are merged otherwise."""
    split = {"type": "Digits", "individual_digits": True}
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, content["pre_tokenizer"]]}


START: Json = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [260], "tokens": ["<s>"]}},
}
Edit = Callable[[Json], object]
SAME: dict[str, Edit] = {
    "offsets": lambda content: pieces(content, trim_offsets=False),
    "decoder": lambda content: content["decoder"].update(add_prefix_space=False),
    "normaliser": lambda content: content.update(normalizer={"type": "Sequence", "normalizers": []}),
    "affixes": lambda content: content["model"].update(continuing_subword_prefix="", end_of_word_suffix=""),
    "special": lambda content: content["added_tokens"][-1].update(special=True),
}
OTHER: dict[str, Edit] = {
    "case": lambda content: content.update(normalizer={"type": "Lowercase"}),
    "composed": lambda content: content.update(normalizer={"type": "NFC"}),
    "compatible": lambda content: content.update(normalizer={"type": "NFKC"}),
    "prefix": lambda content: pieces(content, add_prefix_space=True),
    "spaces": lambda content: content["added_tokens"][-1].update(lstrip=True),
    "digits": digits,
    "start": lambda content: content.update(post_processor=START),
}
TOKENS: dict[str, tuple[Edit, str]] = {
    "merge": (lambda content: content["model"]["merges"].pop(), r"merges None, not \['7', '7'\]"),
    "order of merges": (lambda content: content["model"]["merges"].reverse(), "it merges"),
    "id": (lambda content: content["model"]["vocab"].update({"in": 270}), "'in' has id 270, not id 258"),
    "token": (lambda content: content["added_tokens"].pop(), r"'<\|end\|>' has no id, not id 263"),
}


@pytest.mark.parametrize("name", SAME)
def test_a_tokenizer_that_is_written_otherwise_is_the_same(tmp_path: Path, seed: Path, name: str) -> None:
    assert compared(DenseFiles(seed).tokenizer, changed(tmp_path, seed, SAME[name]).tokenizer) is None


@pytest.mark.parametrize("name", OTHER)
def test_a_text_with_other_ids_is_found(tmp_path: Path, seed: Path, name: str) -> None:
    one, other = DenseFiles(seed).tokenizer, changed(tmp_path, seed, OTHER[name]).tokenizer
    found = compared(one, other)
    assert found is not None
    assert (one(found.text)["input_ids"], other(found.text)["input_ids"]) == (found.first, found.other)


@pytest.mark.parametrize("name", TOKENS)
def test_a_tokenizer_with_other_tokens_is_refused_with_the_difference(tmp_path: Path, seed: Path, name: str) -> None:
    edit, why = TOKENS[name]
    with pytest.raises(IncompatibleExpertError, match=why) as caught:
        require_same_tokenizer(DenseFiles(seed), changed(tmp_path, seed, edit), "the expert", "same")
    assert "the expert has another tokenizer" in caught.value.what
    assert caught.value.where.startswith("tokenizer.json: ")


def test_only_the_ids_of_texts_count_and_the_owner_s_own_are_compared_too(tmp_path: Path, seed: Path) -> None:
    rare = "an odd phrase of one owner"
    split = {"type": "Replace", "pattern": {"String": rare}, "content": "another"}
    other = changed(tmp_path, seed, lambda content: content.update(normalizer=split))
    assert compared(DenseFiles(seed).tokenizer, other.tokenizer) is None
    with pytest.raises(IncompatibleExpertError, match=rare):
        require_same_tokenizer(DenseFiles(seed), other, "the expert", "same", texts=[rare])


def test_a_comparison_is_ended_by_its_limit_and_a_fault_is_told(tmp_path: Path, seed: Path) -> None:
    with pytest.raises(CheckpointError, match="takes over 1 s"):
        difference(seed, seed, seconds=1)
    endless = {"type": "Split", "pattern": {"Regex": "(?:(?:a|a)+)+b"}, "behavior": "Isolated", "invert": False}
    other = changed(tmp_path, seed, lambda content: content.update(pre_tokenizer=endless))
    with pytest.raises(CheckpointError, match=r"fails: .*limit"):
        difference(seed, other.folder, ["a" * 200])


def padded(folder: Path, seed: Path) -> Path:
    """The seed with a token behind the embedding's rows, in every file that can name it."""
    shutil.copytree(seed, folder)
    token = {
        "content": "[PAD]",
        "special": True,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "single_word": False,
    }
    edited(folder, lambda content: content["added_tokens"].append({"id": 280, **token}))
    edited(folder, lambda content: content.update(pad_token="[PAD]", added_tokens_decoder={"280": token}), TOKENIZER)
    edited(folder, lambda content: content.update(pad_token_id=280), "config.json")
    edited(folder, lambda content: content.update(pad_token_id=280), GENERATION)
    return folder


def test_a_token_without_a_row_is_told_and_not_published(tmp_path: Path, seed: Path) -> None:
    own, said = DenseFiles(padded(tmp_path / "padded", seed)), list[str]()
    check_expert(own, DenseFiles(seed), "expert of 'law'", say=said.append)
    assert "280 rows, none for [PAD] (280), pad_token_id (280); versions don't have them" in said[0]
    assert own.config.pad_token_id is None
    removed = tokens_without_row(own, 280)
    assert removed == {"[PAD]": 280}
    for name in ("tokenizer.json", TOKENIZER):
        assert b"[PAD]" not in published_tokenizer(own.folder / name, removed)
        assert published_tokenizer(seed / name, tokens_without_row(DenseFiles(seed), 280)) == (seed / name).read_bytes()
    assert "280" not in (published_generation(own, 280) or "")


def test_a_token_that_only_the_settings_name_is_behind_the_others(tmp_path: Path, seed: Path) -> None:
    own = changed(tmp_path, seed, lambda content: content.update(pad_token="[PAD]"), TOKENIZER)
    assert tokens_without_row(own, 264) == {"[PAD]": 264} == {"[PAD]": own.tokenizer.pad_token_id}
    assert tokens_without_row(own, 280) == {}


def test_settings_of_many_unused_tokens_are_read(tmp_path: Path, seed: Path) -> None:
    """Gemma 3 has 6,242 of them, in over a megabyte."""
    token = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": False}
    many = {str(place): {"content": f"<unused{place}>", **token} for place in range(6242)}
    own = changed(tmp_path, seed, lambda content: content.update(notes=many, spaces=" " * 2**19), TOKENIZER)
    assert (own.folder / TOKENIZER).stat().st_size > 2**20
    check_expert(own, None, "expert of 'law'")
    assert tokenizer_settings(own) != tokenizer_settings(DenseFiles(seed))


def test_a_tokenizer_that_transformers_saved_again_has_the_same_settings(tmp_path: Path, seed: Path) -> None:
    """So that nobody waits for a comparison of texts."""
    folder = shutil.copytree(seed, tmp_path / "saved")
    AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    assert (folder / TOKENIZER).read_bytes() != (seed / TOKENIZER).read_bytes()
    assert tokenizer_settings(DenseFiles(folder)) == tokenizer_settings(DenseFiles(seed))
