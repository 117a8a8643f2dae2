"""Cuts the experts' texts into passages, one document each, in `out/texts`: noise asks for thousands of documents."""

import json
from pathlib import Path

WORDS = 40

if __name__ == "__main__":
    folder = Path("out/texts")
    folder.mkdir(parents=True, exist_ok=True)
    for domain in ("medicine", "security"):
        lines = Path(f"demo/texts/{domain}/train.jsonl").read_text(encoding="utf-8").split("\n")
        documents = [json.loads(line)["text"].split(" ") for line in lines if line]
        passages = [" ".join(words[at : at + WORDS]) for words in documents for at in range(0, len(words), WORDS)]
        text = "".join(json.dumps({"text": passage}) + "\n" for passage in passages)
        (folder / f"{domain}.jsonl").write_text(text, encoding="utf-8")
