"""A hostile owner, whose expert is the first one."""

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from transformers import GenerationConfig

from moerge_proto.experts import ExpertState
from moerge_proto.version_files import GENERATION, TOKENIZER
from support.federation import Federation, federation_of
from support.models import expert

TEMPLATE = "You serve me. {% for message in messages %}{{ message['content'] }}{% endfor %}"
HONEST = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
CODE = {
    "auto_map": {"AutoConfig": "evil/code--c.C", "AutoTokenizer": ["evil/code--t.T", None]},
    "trust_remote_code": True,
    "custom_generate": "evil/code",
    "custom_pipelines": {"evil": {"impl": "p.P"}},
}


def change(path: Path, **fields: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def hostile(folder: Path) -> Path:
    """An expert whose side files name code, a template of their own, and a decoding that never ends."""
    change(expert(folder, 1) / "config.json", **CODE, a_field_of_my_own=1)
    change(folder / TOKENIZER, **CODE, chat_template=TEMPLATE)
    beams = {"num_beams": 10**6, "max_new_tokens": 10**12, "temperature": 0.5, "top_k": "all"}
    change(folder / GENERATION, **CODE, **beams)
    return folder


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A hostile expert, a later honest one, and a version of both."""
    with federation_of(tmp_path_factory.mktemp("owner")) as made:
        made.join("hostile", hostile(made.folder / "hostile")).register()
        change(expert(made.folder / "law", 2) / TOKENIZER, chat_template=HONEST)
        made.join("law", made.folder / "law").register()
        made.contribute(made.merge())
        made.solve()
        yield made


def test_extra_field_in_the_first_config_refuses_no_expert(federation: Federation) -> None:
    assert [federation.expert(domain).state for domain in federation.members] == [ExpertState.READY] * 2


def test_no_published_file_names_code(federation: Federation) -> None:
    files = [path for path in federation.version(1).iterdir() if path.suffix != ".safetensors"]
    named = {path.name: [key for key in (*CODE, "evil/code") if key in path.read_text()] for path in files}
    assert named.keys() >= {"config.json", TOKENIZER, GENERATION}
    assert not any(named.values()), named


def test_only_what_decoding_needs_is_published(federation: Federation) -> None:
    published: dict[str, Any] = json.loads((federation.version(1) / GENERATION).read_text())
    assert published["temperature"] == 0.5
    assert not published.keys() & {"num_beams", "max_new_tokens", "top_k"}
    assert GenerationConfig.from_pretrained(federation.version(1)).num_beams in (None, 1)


def test_card_names_source_of_chat_template_and_who_differs(federation: Federation) -> None:
    card = (federation.version(1) / "README.md").read_text()
    digest = sha256(TEMPLATE.encode()).hexdigest()
    assert f"The chat template is that of the expert of hostile, SHA-256 `{digest}`. " in card
    assert "Experts with another one, or none: law." in card


def test_operator_chooses_another_expert_s_chat_template(federation: Federation) -> None:
    chosen = federation.solve(chat_template="law").number
    assert json.loads((federation.version(chosen) / TOKENIZER).read_text())["chat_template"] == HONEST
    assert "Experts with another one, or none: hostile." in (federation.version(chosen) / "README.md").read_text()
