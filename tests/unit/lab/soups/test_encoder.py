"""Documents embedded by a sentence encoder."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from moerge.errors import CheckpointError, MoergeError
from moerge.progress import NoProgress
from moerge_lab.soups.encoder import encoded, encoder_files
from support.models import expert, sentence_encoder


def test_a_vector_is_the_mean_of_the_last_hidden_states_over_the_document_s_text(tmp_path: Path) -> None:
    """The encoder reads 24 tokens; special tokens of the seed's tokenizer are no text."""
    seed, encoder = expert(tmp_path / "seed", 0), sentence_encoder(tmp_path / "encoder")
    texts = ["a text", "", "another, of more than twenty-four characters", "b"]
    tokenizer = AutoTokenizer.from_pretrained(seed)
    documents = [[*tokenizer(text)["input_ids"], 257] if text else [] for text in texts]
    found = encoded(encoder, seed, documents, 40, "cpu", NoProgress())
    model: Any = AutoModel.from_pretrained(encoder).eval()
    with torch.no_grad():
        wanted = [
            model(torch.tensor([tokenizer(text)["input_ids"][:24]])).last_hidden_state[0].mean(0)
            for text in texts
            if text
        ]
    torch.testing.assert_close(found, torch.stack(wanted))
    cut = encoded(encoder, seed, documents, 6, "cpu", NoProgress())
    torch.testing.assert_close(cut[0], found[0])
    assert not torch.allclose(cut[1], found[1])
    with pytest.raises(MoergeError, match="no document has a token"):
        encoded(encoder, seed, [[]], 40, "cpu", NoProgress())


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_an_incomplete_encoder_is_refused(tmp_path: Path, name: str) -> None:
    encoder = sentence_encoder(tmp_path / "encoder")
    assert name in encoder_files(encoder)
    (encoder / name).unlink()
    with pytest.raises(CheckpointError, match="not found") as refused:
        encoder_files(encoder)
    assert refused.value.where == str(encoder / name)
