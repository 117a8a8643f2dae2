"""The programs of docs/training-an-expert.md, run as they stand there: their experts keep the seed's body and head."""

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from moerge.models.dense import mlp_names
from moerge.models.dense_files import DenseFiles
from moerge.models.keeping import keeping
from moerge.models.sources import checkpoint_folder
from support.models import seed_model, texts
from support.terminal import Shell
from support.transcripts import ROOT, Part

pytestmark = pytest.mark.slow

PROGRAMS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "training-an-expert.md").read_text(), re.DOTALL)


@pytest.mark.filterwarnings("ignore")  # of the trainer, about its own names
@pytest.mark.parametrize("number_format", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("program", "expert"), [(0, "expert"), (1, "seed+adapter")])
def test_an_expert_that_is_trained_as_the_page_says_keeps_body_and_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: int, expert: str, number_format: torch.dtype
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    seed = seed_model(tmp_path / "seed", tie_word_embeddings=True, num_hidden_layers=2)
    stored = load_file(seed / "model.safetensors")
    save_file(
        {name: tensor.to(number_format) for name, tensor in stored.items()},
        seed / "model.safetensors",
        {"format": "pt"},
    )
    rows = [{"input_ids": [row + n for n in range(16)], "labels": [row + n for n in range(16)]} for row in range(8)]
    exec(PROGRAMS[program], {"rows": rows})  # noqa: S102  # the page's own
    own, base = DenseFiles(checkpoint_folder(expert)), DenseFiles(seed)
    found = keeping(own, base)
    assert found.keeps_body, str(found)
    assert found.keeps_head
    names = mlp_names(base)
    assert any(
        not torch.equal(own.checkpoint.tensor(name).float(), base.checkpoint.tensor(name).float()) for name in names
    )
    if program == 0 and number_format == torch.float32:
        (tmp_path / "text").mkdir()
        texts(tmp_path / "text" / "a.jsonl", 0, documents=1200)
        with Shell(tmp_path) as owner, Part("docs/training-an-expert.md", "Check") as part:
            assert (
                "keeps the seed's body and head; its MLPs aren't fitted, and no head or head contribution leaves"
                in owner.types(part.next("moerge worker check"))
            )
