"""A reader that trusts a version with more than it needs."""

import json
from pathlib import Path

from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from moerge.models.side_files import TOKENIZER
from support.models import expert
from support.versions import published


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
