"""`moerge usage` on a real small version: table, JSON, picture, kind errors, and what a report would have."""

import json
import socket
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner, Result

from moerge.cli.app import app
from moerge.cli.usage import reported
from moerge.errors import MoergeError
from moerge.scoring.usage import Estimate, ExpertUsage, LayerUsage, Usage
from moerge.scoring.usage_picture import picture
from support.models import expert
from support.versions import published

SVG = "{http://www.w3.org/2000/svg}"
TEMPLATE = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
ESTIMATE = {"share", "error"}


@pytest.fixture(scope="module")
def version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A version of three experts, two per token, with a chat template."""
    folder = tmp_path_factory.mktemp("usage")
    result = published([expert(folder / str(slot), slot) for slot in range(3)], folder, top_k=2)
    (result / "chat_template.jinja").write_text(TEMPLATE)
    return result


@pytest.fixture
def requests(tmp_path: Path) -> Path:
    path = tmp_path / "requests.jsonl"
    path.write_text("".join(json.dumps(request(number)) + "\n" for number in range(24)))
    return path


def request(number: int) -> dict[str, Any]:
    """The text is the rendered conversation."""
    content = f"what is {number} times {'nine ' * (1 + number % 5)}"
    return {"text": f"user: {content}\n", "messages": [{"role": "user", "content": content}]}


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["usage", *map(str, arguments)])


def printed(*arguments: object) -> dict[str, Any]:
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.output
    content: dict[str, Any] = json.loads(done.stdout)
    return content


def test_json_has_shares_of_every_layer_with_errors(version: Path, requests: Path) -> None:
    found = printed(version, "--text", requests)
    assert found.keys() == {"version", "documents", "tokens", "experts"}
    assert (found["version"], found["documents"]) == (None, 24)
    assert found["tokens"] > 24
    assert [item["domain"] for item in found["experts"]] == ["d0", "d1", "d2"]
    for item in found["experts"]:
        assert item.keys() == {"domain", "tokens", "weight", "layers"}
        assert [layer["layer"] for layer in item["layers"]] == [0, 1, 2]
        for place in (item, *item["layers"]):
            for kind in ("tokens", "weight"):
                assert place[kind].keys() == ESTIMATE
                assert 0 <= place[kind]["error"] < place[kind]["share"] + 1 < 2 + 1e-9
        for kind in ("tokens", "weight"):
            mean = sum(layer[kind]["share"] for layer in item["layers"]) / 3
            assert item[kind]["share"] == pytest.approx(mean)


def test_chats_are_read_through_the_version_s_template(version: Path, requests: Path) -> None:
    texts, chats = printed(version, "--text", requests), printed(version, "--chat", requests)
    assert chats == texts, "the tokenizer adds nothing to a text"
    both = printed(version, "--text", requests, "--chat", requests)
    assert both["documents"] == 2 * texts["documents"]
    assert both["tokens"] == 2 * texts["tokens"]
    for one, other in zip(both["experts"], texts["experts"], strict=True):
        assert one["tokens"]["share"] == pytest.approx(other["tokens"]["share"])


def test_other_fields_and_formats_are_read(version: Path, requests: Path, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in requests.read_text().splitlines()]
    other = tmp_path / "other.json"
    other.write_text(json.dumps([{"prompt": line["text"], "turns": line["messages"]} for line in lines]))
    expected = printed(version, "--text", requests)
    assert printed(version, "--text", other, "--text-field", "prompt") == expected
    assert printed(version, "--chat", other, "--chat-field", "turns") == expected


def test_few_documents_are_pieces_of_a_context(version: Path, tmp_path: Path) -> None:
    path = tmp_path / "story.txt"
    path.write_text("one long text " * 30)
    whole, pieces = printed(version, "--text", path), printed(version, "--text", path, "--context", 64)
    assert whole["tokens"] == pieces["tokens"]
    assert whole["documents"] == -(-whole["tokens"] // 256), "the version's context"
    assert pieces["documents"] == -(-pieces["tokens"] // 64)


def test_the_table_has_means_errors_and_the_range_of_layers(version: Path, requests: Path) -> None:
    done, found = run(version, "--text", requests), printed(version, "--text", requests)
    assert f"{found['tokens']:,} tokens in 24 documents" in done.stdout
    for item in found["experts"]:
        [row] = [line for line in done.stdout.splitlines() if f" {item['domain']} " in line]
        layers = [100 * layer["weight"]["share"] for layer in item["layers"]]
        share, error = (100 * item["tokens"][name] for name in ("share", "error"))
        assert f"{share:.1f} ± {error:.1f}" in row
        assert f"{min(layers):.1f} to {max(layers):.1f}" in row
    assert "measuring use: 100 %" in done.stderr


def test_the_picture_has_a_cell_for_each_expert_and_layer(version: Path, requests: Path, tmp_path: Path) -> None:
    found = printed(version, "--text", requests, "--svg", tmp_path / "use.svg")
    drawn = ElementTree.fromstring((tmp_path / "use.svg").read_text())  # noqa: S314  # our own
    cells = [item for item in drawn.iter(f"{SVG}rect") if "cell" in item.get("class", "").split()]
    said = [str(title.text) for cell in cells for title in cell.iter(f"{SVG}title")]
    every = [
        (item, layer, kind) for kind in ("tokens", "weight") for item in found["experts"] for layer in item["layers"]
    ]
    assert len(said) == len(every) == 18
    for text, (item, layer, kind) in zip(said, every, strict=True):
        assert text.startswith(f"{item['domain']}, layer {layer['layer']}: {100 * layer[kind]['share']:.1f} ± ")
    shades = [float(cell.get("fill-opacity", "")) for cell in cells]
    assert shades[0] == pytest.approx(0.05 + 0.95 * found["experts"][0]["layers"][0]["tokens"]["share"], abs=1e-3)
    assert "prefers-color-scheme: dark" in (tmp_path / "use.svg").read_text()


def made(*shares: float, weight: float = 0.5) -> Usage:
    layers = [LayerUsage(0, Estimate(shares[0], None), Estimate(weight, None))]
    experts = [
        ExpertUsage(f"d{slot}", Estimate(share, 0.01), Estimate(share, 0.01), layers)
        for slot, share in enumerate(shares)
    ]
    return Usage("3", 12, 3456, experts)


def test_one_expert_per_token_is_one_map_and_names_are_escaped() -> None:
    drawn = ElementTree.fromstring(picture(made(0.25, 0.75), "<b>"))  # noqa: S314  # our own
    groups = [item.text for item in drawn.iter(f"{SVG}text") if "group" in item.get("class", "").split()]
    assert groups == ["tokens, by their first expert"]


def test_a_report_has_rounded_shares_and_nothing_else() -> None:
    content = reported(made(1 / 3, 1.0 + 1e-12 - 1 / 3)).model_dump()
    assert content == {
        "experts": {
            "d0": {"tokens": 0.333, "tokens_error": 0.01, "weight": 0.333, "weight_error": 0.01},
            "d1": {"tokens": 0.667, "tokens_error": 0.01, "weight": 0.667, "weight_error": 0.01},
        }
    }


def test_nothing_is_sent_without_report(version: Path, requests: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **more: object) -> None:
        raise AssertionError("a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setenv("MOERGE_COORDINATOR", "http://127.0.0.1:9")
    monkeypatch.setenv("MOERGE_TOKEN", "moerge_x")
    assert printed(version, "--text", requests)["documents"] == 24


def failure(*arguments: object) -> MoergeError:
    done = run(*arguments)
    assert isinstance(done.exception, MoergeError), done.output
    return done.exception


def test_bad_input_is_refused_with_its_place_and_a_remedy(version: Path, requests: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text('{"text": ""}\n')
    dense, missing = version.parent / "0", tmp_path / "none.jsonl"
    for arguments, where, what, todo in (
        ((dense, "--text", requests), str(dense / "moerge.json"), "no record", "moerge pull or moerge merge"),
        ((version,), "--text, --chat", "no requests", "--text or --chat"),
        ((version, "--text", empty), "--text, --chat", "no request has text", "other files"),
        (
            (version, "--text", missing),
            f"--text {missing}",
            "no file",
            "check the path",
        ),
        (
            (version, "--text", requests, "--text-field", "body"),
            str(requests),
            "found fields: text",
            "--text-field text",
        ),
        ((version, "--chat", requests, "--chat-field", "x"), str(requests), "field 'x'", "--chat-field messages"),
        ((version, "--text", requests, "--context", 257), "--context", "256 tokens", "at most"),
        ((version, "--text", requests, "--report"), str(version), "signed versions", "omit --report"),
    ):
        error = failure(*arguments)
        assert error.where == where
        assert what in error.what
        assert todo in error.todo


def test_a_version_without_a_template_has_no_chats(version: Path, requests: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    for path in version.iterdir():
        if path.name != "chat_template.jinja":
            (plain / path.name).hardlink_to(path)
    error = failure(plain, "--chat", requests)
    assert (error.where, "--text" in error.todo) == ("--chat", True)


def test_a_record_of_other_experts_is_refused(version: Path, requests: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for path in version.iterdir():
        if path.name != "moerge.json":
            (other / path.name).hardlink_to(path)
    record = json.loads((version / "moerge.json").read_text())
    (other / "moerge.json").write_text(json.dumps(record | {"domains": ["d0"]}))
    assert "1 domains, but the model has 3 experts" in failure(other, "--text", requests).what
