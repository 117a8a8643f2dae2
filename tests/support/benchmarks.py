"""Questions of benchmarks."""

import json
import random
from pathlib import Path


def questions(path: Path, count: int) -> None:
    """Writes a file of random questions with four choices each."""
    choose = random.Random(path.name)  # noqa: S311  # no secret
    letters = "abcdefghijklmnopqrstuvwxyz "
    with path.open("w", encoding="utf-8") as out:
        for _ in range(count):
            texts = ["".join(choose.choices(letters, k=choose.randint(5, 30))) for _ in range(5)]
            record = {"question": texts[0], "choices": texts[1:], "answer": choose.randrange(4)}
            out.write(json.dumps(record) + "\n")
