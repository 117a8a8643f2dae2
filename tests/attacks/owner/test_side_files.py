"""A hostile owner, whose files beside the weights would reach those who load a version."""

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from transformers import GenerationConfig

from moerge_proto.experts import ExpertState
from moerge_proto.version_files import GENERATION, TOKENIZER
from support.federation import Federation, federation_of, parted
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


def hostile(folder: Path) -> None:
    """Gives an expert side files that name code, a template of their own, and a decoding that never ends."""
    change(folder / "config.json", **CODE, a_field_of_my_own=1)
    change(folder / TOKENIZER, **CODE, chat_template=TEMPLATE)
    beams = {"num_beams": 10**6, "max_new_tokens": 10**12, "temperature": 0.5, "top_k": "all"}
    change(folder / GENERATION, **CODE, **beams)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A hostile expert, an honest one, and two versions: with the seed's tokenizer, and with the hostile one's."""
    with federation_of(tmp_path_factory.mktemp("owner")) as made:
        for seed, domain in enumerate(("hostile", "law"), 1):
            member = made.join(domain, expert(made.folder / domain, seed))
            made.members[domain] = parted(made.server, member, made.body(), fitted=False)
        hostile(made.members["hostile"].place)
        change(made.members["law"].place / TOKENIZER, chat_template=HONEST)
        assert [member.register().state for member in made.members.values()] == [ExpertState.READY] * 2
        made.contribute(made.body())
        made.solve()
        made.solve(chat_template="hostile")
        yield made


@pytest.mark.parametrize("number", [1, 2])
def test_no_published_file_names_code(federation: Federation, number: int) -> None:
    files = [path for path in federation.version(number).iterdir() if path.suffix != ".safetensors"]
    named = {path.name: [key for key in (*CODE, "evil/code") if key in path.read_text()] for path in files}
    assert named.keys() >= {"config.json", TOKENIZER, GENERATION}
    assert not any(named.values()), named


def test_only_what_decoding_needs_is_published(federation: Federation) -> None:
    published: dict[str, Any] = json.loads((federation.version(2) / GENERATION).read_text())
    assert published["temperature"] == 0.5
    assert not published.keys() & {"num_beams", "max_new_tokens", "top_k"}
    assert GenerationConfig.from_pretrained(federation.version(2)).num_beams in (None, 1)


def test_an_owner_s_template_is_published_only_if_the_operator_chooses_it(federation: Federation) -> None:
    first, second = ((federation.version(number) / TOKENIZER).read_text() for number in (1, 2))
    assert "serve me" not in first
    assert json.loads(second)["chat_template"] == TEMPLATE
    card = (federation.version(2) / "README.md").read_text()
    digest = sha256(TEMPLATE.encode()).hexdigest()
    assert f"The chat template is that of the expert of hostile, SHA-256 `{digest}`. " in card
    assert "Experts with another one, or none: law." in card
