"""A reader: its refused calls, and what a version could make it run."""

import json
from pathlib import Path

import httpx
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from moerge_proto.owners import NewToken, Role
from moerge_proto.version_files import TOKENIZER
from support.models import expert
from support.processes import coordinator
from support.versions import published


def test_refused_calls_of_a_reader_leave_no_rows(tmp_path: Path) -> None:
    with coordinator(tmp_path / "home") as server, server.client() as operator:
        token = operator.add_token(NewToken(role=Role.READER)).secret
        for name in ("a" * 64, "b" * 2000):
            path = f"{server.url}/v1/experts/{name}/withdraw"
            refused = httpx.post(path, headers={"Authorization": f"Bearer {token}"}, json={})
            assert refused.status_code == 403
            permitted = httpx.post(path, headers={"Authorization": f"Bearer {server.operator_token}"}, json={})
            assert permitted.status_code in (404, 422)
        rows = list(operator.audit())
    assert {row.role for row in rows} == {Role.OPERATOR}
    assert max(len(row.path) for row in rows) == 200


def test_a_reader_that_runs_remote_code_is_led_to_none(tmp_path: Path) -> None:
    """Offline, transformers fails where a file names another repository."""
    own = expert(tmp_path / "own", 1)
    for name in ("config.json", TOKENIZER):
        content = json.loads((own / name).read_text())
        code = {kind: f"evil/code--m.{kind}" for kind in ("AutoConfig", "AutoModelForCausalLM")}
        code["AutoTokenizer"] = ["evil/code--t.T", None]  # type: ignore[assignment]  # as transformers wants it
        (own / name).write_text(json.dumps({**content, "auto_map": code}))
    version = published([own, expert(tmp_path / "other", 2)], tmp_path)
    for kind in (AutoConfig, AutoTokenizer, AutoModelForCausalLM):
        loaded = kind.from_pretrained(version, trust_remote_code=True)
        assert type(loaded).__module__.startswith("transformers.")
