"""`moerge chat`: replies of a real small version, with the expert of each token."""

import json
import re
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner, Result

from moerge.chat.replies import Piece, Speaker
from moerge.cli.app import app
from support.models import expert, tokenizer
from support.terminal import Terminal, plain
from support.versions import published

TEMPLATE = "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}{% endfor %}<assistant>"
TEXT, NEW = "hällo", 24


@pytest.fixture(scope="module")
def version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A version without a chat template, whose new tokens are all letters."""
    folder = tmp_path_factory.mktemp("chat")
    result = published([expert(folder / str(slot), slot, num_hidden_layers=3) for slot in range(3)], folder, top_k=2)
    size = json.loads((result / "config.json").read_text())["vocab_size"]
    letters = {number for word, number in tokenizer().get_vocab().items() if word.isascii() and word.isalpha()}
    other = sorted(set(range(size)) - letters)
    (result / "generation_config.json").unlink(missing_ok=True)
    (result / "generation_config.json").write_text(json.dumps({"suppress_tokens": other}))
    return result


@pytest.fixture
def talking(version: Path, tmp_path: Path) -> Path:
    """The version with a chat template."""
    folder = tmp_path / "talking"
    folder.mkdir()
    for path in version.iterdir():
        (folder / path.name).hardlink_to(path)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def chat(*arguments: object, typed: str = "") -> Result:
    return CliRunner().invoke(app, ["chat", *map(str, arguments)], input=typed)


def objects(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def continued(version: Path, text: str, new: int = NEW) -> str:
    """The continuation by transformers."""
    model: Any = AutoModelForCausalLM.from_pretrained(version)
    own = AutoTokenizer.from_pretrained(version)
    ids = own(text, return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        result = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False)
    return str(own.decode(result[0, ids.shape[1] :], skip_special_tokens=True))


def test_a_token_has_the_expert_of_most_layers_at_the_position_that_predicts_it(version: Path) -> None:
    pieces = list[Piece]()
    Speaker(version, tokens=NEW, temperature=0).reply(TEXT, pieces.append)
    reply = "".join(piece.text for piece in pieces)
    assert reply == continued(version, TEXT)
    ids = AutoTokenizer.from_pretrained(version)(TEXT + reply, return_tensors="pt")["input_ids"]
    model = AutoModelForCausalLM.from_pretrained(version)
    with torch.inference_mode():
        logits = torch.stack(model(ids, output_router_logits=True).router_logits)  # [L, n, D]
    chosen = logits.argmax(-1)[:, -1 - NEW : -1].T.tolist()  # [new, L]
    assert [piece.layers for piece in pieces] == [Counter(f"d{slot}" for slot in layers) for layers in chosen]
    assert all(piece.layers[piece.expert] == max(piece.layers.values()) for piece in pieces)
    assert len({piece.expert for piece in pieces}) > 1


def test_bytes_of_a_character_are_one_piece(version: Path, tmp_path: Path) -> None:
    """Here new tokens are any bytes: no piece ends within a character that the text completes."""
    folder = tmp_path / "version"
    folder.mkdir()
    for path in version.iterdir():
        if path.name != "generation_config.json":
            (folder / path.name).hardlink_to(path)
    pieces = list[Piece]()
    Speaker(folder, tokens=200, temperature=0).reply(TEXT, pieces.append)
    assert "".join(piece.text for piece in pieces) == continued(folder, TEXT, 200)


def test_a_text_is_continued_without_colours_in_a_pipe(version: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text(TEXT, encoding="utf-8")
    options = ("--temperature", 0, "--tokens", NEW)
    done = chat(version, "--text", tmp_path / "text", *options)
    assert (done.exit_code, done.stdout) == (0, continued(version, TEXT) + "\n")
    assert done.stdout == chat(version, "--text", "-", *options, typed=TEXT).stdout
    shares = [int(word) for word in done.stderr.split() if word.isdecimal()]
    assert shares[0] == NEW
    assert sum(shares[1:]) == pytest.approx(100, abs=1)


def test_json_has_an_object_for_each_token_and_reply(version: Path) -> None:
    *tokens, reply = objects(chat(version, "--text", "-", "--temperature", 0, "--tokens", NEW, "--json", typed=TEXT))
    assert "".join(item["text"] for item in tokens) == reply["reply"] == continued(version, TEXT)
    assert Counter(item["expert"] for item in tokens) == reply["tokens"]
    assert all(sum(item["layers"].values()) == 3 for item in tokens)


def test_a_seed_repeats_a_reply(version: Path) -> None:
    def drawn(seed: int) -> str:
        return chat(version, "--text", "-", "--seed", seed, "--temperature", 1, typed=TEXT).stdout

    assert drawn(1) == drawn(1) != drawn(2)


def test_a_conversation_goes_through_the_chat_template_with_its_earlier_messages(talking: Path) -> None:
    done = objects(chat(talking, "--temperature", 0, "--tokens", NEW, "--json", typed="one\n\ntwo\n"))
    first, second = (item["reply"] for item in done if "reply" in item)
    assert first == continued(talking, "<user>one<assistant>")
    assert second == continued(talking, f"<user>one<assistant>{first}<user>two<assistant>")


def test_without_a_template_each_line_is_continued(version: Path) -> None:
    done = objects(chat(version, "--temperature", 0, "--tokens", NEW, "--json", typed="one\ntwo\n"))
    assert [item["reply"] for item in done if "reply" in item] == [continued(version, text) for text in ("one", "two")]


def shows(pattern: str, shown: str) -> bool:
    return re.search(pattern, plain(shown), re.DOTALL) is not None


@pytest.mark.parametrize("environment", [{}, {"NO_COLOR": "1"}], ids=["colours", "no-color"])
def test_a_terminal_has_colours_and_a_legend_and_ctrl_c_ends_a_reply(
    talking: Path, environment: dict[str, str]
) -> None:
    """Also after the first one: the child that renders chat templates must survive."""
    command = [sys.executable, "-m", "moerge", "chat", str(talking), "--temperature", "0", "--tokens", "450"]
    terminal = Terminal(command, environment=environment, columns=200, echo=False)
    try:
        for prompts in (1, 2):
            terminal.until(partial(shows, f"(> .*){{{prompts}}}$"))
            terminal.type(b"one\r")
            terminal.until(partial(shows, rf"(> .*){{{prompts}}}\w{{20}}"))
            terminal.type(b"\x03")
        terminal.until(partial(shows, "(> .*){3}$"))
        terminal.type(b"\x04")
    finally:
        assert terminal.close() == 0, terminal.shown
    shown = plain(terminal.shown)
    assert 20 < int(re.findall(r"(\d+) tokens: d0 \d+ %, d1 \d+ %, d2 \d+ %", shown)[0]) < 900
    colours = set(re.findall(r"\x1b\[[\d;]*m", terminal.shown))
    assert (len(colours) > 2, shown.lstrip().startswith("d0, d1, d2")) == (
        (False, False) if environment else (True, True)
    )
    assert not (environment and colours)


def test_a_dense_model_is_refused_by_its_config(tmp_path: Path) -> None:
    folder = expert(tmp_path / "dense", 1)
    done = CliRunner().invoke(app, ["chat", str(folder)])
    assert done.exit_code == 1
    assert f"{folder / 'config.json'}: model_type" in str(done.exception)
    assert "found a model of type 'llama'" in str(done.exception)


def test_a_text_that_is_too_long_or_no_text_is_refused(version: Path, tmp_path: Path) -> None:
    assert "found 600" in str(chat(version, "--text", "-", typed="a" * 600).exception)
    assert "found 0" in str(chat(version, "--text", "-", typed="").exception)
    (tmp_path / "latin").write_bytes(b"\xe4")
    assert "can't be read" in str(chat(version, "--text", tmp_path / "latin").exception)
