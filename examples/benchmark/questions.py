"""Writes questions into `out/benchmarks` in the form of LAMBADA: the last word of texts that no expert has seen."""

import json
from pathlib import Path

WORDS, COUNT = 50, 400
"""Words of a text; questions."""

if __name__ == "__main__":
    lines = Path("demo/texts/security/heldout.jsonl").read_text(encoding="utf-8").splitlines()
    documents = [json.loads(line)["text"].split() for line in lines]
    texts = [" ".join(words[at : at + WORDS]) for words in documents for at in range(0, len(words) - WORDS, WORDS)]
    folder = Path("out/benchmarks")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "lambada_test.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[:COUNT]))
