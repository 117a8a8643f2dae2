"""Documents embedded by a sentence encoder, in place of the seed model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

from moerge.errors import CheckpointError
from moerge.models.dense import place
from moerge.models.expert_folder import TOKENIZER_FILES
from moerge.models.stored import INDEX, SINGLE
from moerge.progress import Progress
from moerge_lab.soups.domains import means


def encoder_files(folder: Path) -> dict[str, Path]:
    """Name -> path of an encoder's files: config, weights, tokenizer.

    Raises:
        CheckpointError: config.json, tokenizer.json or safetensors weights are missing.
    """
    names = sorted({"config.json", "vocab.txt", INDEX, *TOKENIZER_FILES})
    found = [path for path in (folder / name for name in names) if path.is_file()]
    weights = sorted(folder.glob("*.safetensors"))
    missing = [name for name in ("config.json", "tokenizer.json") if folder / name not in found]
    if missing := missing or ([] if weights else [SINGLE]):
        todo = "name a folder written by save_pretrained of an encoder and of its fast tokenizer"
        raise CheckpointError("not found", where=str(folder / missing[0]), todo=todo)
    return {path.name: path for path in (*weights, *found)}


def encoded(
    encoder: Path, seed: Path, documents: Sequence[Sequence[int]], context: int, device: str, progress: Progress
) -> Tensor:
    """[n, H] float32: the mean of the encoder's last hidden states over the text of each document.

    Args:
        encoder: folder of any model of `AutoModel`.
        seed: folder with the documents' tokenizer.
        context: tokens of a document that are read, at most; also at most the encoder's own.

    Raises:
        MoergeError: there is no document with a token.
    """
    writer, tokenizer = (
        AutoTokenizer.from_pretrained(each, local_files_only=True, trust_remote_code=False) for each in (seed, encoder)
    )
    model: Any = AutoModel.from_pretrained(
        encoder, local_files_only=True, trust_remote_code=False, use_safetensors=True, dtype=torch.float32
    )
    place(model.eval(), device)
    longest = min(tokenizer.model_max_length, model.config.max_position_embeddings)
    texts = [writer.decode([*document[:context]], skip_special_tokens=True) for document in documents if document]
    cut = [tokenizer(text, truncation=True, max_length=longest)["input_ids"] for text in texts]

    def states(ids: Tensor, real: Tensor) -> Tensor:
        found: Tensor = model(input_ids=ids, attention_mask=real).last_hidden_state
        return found

    return means(states, model.device, cut, "encoding documents", progress)
