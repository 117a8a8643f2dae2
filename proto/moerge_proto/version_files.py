"""The names of a version's files. A coordinator publishes no others, and a pull writes no others."""

import re
from collections.abc import Iterable

from moerge_proto.records import RECORD_FILE

BODY_FILE, ADDED_FILE = "model-body.safetensors", "model-body-added.safetensors"
HEAD_FILE, FUSED_FILE = "model-head.safetensors", "model-experts.safetensors"
ROUTER_FILE, INDEX_FILE = "model-router.safetensors", "model.safetensors.index.json"
CONFIG_FILE, REPORT_FILE, CARD_FILE = "config.json", "moerge-report.json", "README.md"
GENERATION, TOKENIZER = "generation_config.json", "tokenizer_config.json"
SPECIAL_TOKENS, TEMPLATE = "special_tokens_map.json", "chat_template.jinja"
TOKENIZER_FILES = (
    *("added_tokens.json", TEMPLATE, "merges.txt", SPECIAL_TOKENS, "tokenizer.json", "tokenizer.model"),
    *(TOKENIZER, "vocab.json"),
)
_EXPERT = re.compile(r"model-expert-[0-9]{5}\.safetensors")
_NAMES = {
    *(BODY_FILE, ADDED_FILE, HEAD_FILE, FUSED_FILE, ROUTER_FILE, INDEX_FILE),
    *(CONFIG_FILE, GENERATION, RECORD_FILE, REPORT_FILE, CARD_FILE, *TOKENIZER_FILES),
}


def expert_name(slot: int) -> str:
    return f"model-expert-{slot:05d}.safetensors"


def foreign_names(names: Iterable[str]) -> list[str]:
    """The names that no version has, such as those of code."""
    return sorted(name for name in names if name not in _NAMES and not _EXPERT.fullmatch(name))
