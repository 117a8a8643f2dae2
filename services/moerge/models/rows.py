"""Tokens without a row in the embedding, such as a padding token that was added to a tokenizer alone.

No text with such a token can be read, so versions don't have it.
"""

from moerge.files import json_object
from moerge.models.config import ids_without_row
from moerge.models.dense_files import DenseFiles
from moerge.models.side_files import named_tokens
from moerge.models.tokenizer import JSON, MAX_BYTES
from moerge.models.tokenizers import read_tokenizer, tokens_of
from moerge_proto.version_files import SPECIAL_TOKENS, TOKENIZER


def tokens_without_row(model: DenseFiles, rows: int) -> dict[str, int]:
    """The tokens of tokenizer.json, and of the settings beside it, with ids from `rows` on -> their ids.

    A special token that only the settings name gets the id behind the last one.
    """
    if not model.side_file(JSON).is_file():
        return {}
    tokens = tokens_of(read_tokenizer(model))
    for path in map(model.side_file, (TOKENIZER, SPECIAL_TOKENS)):
        for token in named_tokens(json_object(path, MAX_BYTES)) if path.is_file() else ():
            tokens.setdefault(token, max(tokens.values(), default=-1) + 1)
    return {token: id_ for token, id_ in tokens.items() if id_ >= rows}


def described(model: DenseFiles) -> str:
    """A sentence on a model's tokens, and ids of its config, without a row; nothing without them."""
    rows = int(model.config.vocab_size)
    found = [f"{token} ({id_})" for token, id_ in tokens_without_row(model, rows).items()]
    found += [f"{name} ({id_})" for name, id_ in ids_without_row(model.side_file("config.json")).items()]
    if not found:
        return ""
    return f"the embedding has {rows:,} rows, none for {', '.join(found)}; versions don't have them"
