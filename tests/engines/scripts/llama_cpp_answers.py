"""Answers of llama.cpp, run by its own Python: `llama_cpp_answers.py JOB`. A model's folder is a GGUF file."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from llama_cpp import GGML_TYPE_F32, Llama  # type: ignore[import-not-found]  # in an environment of its own


def main(job: dict[str, Any]) -> None:
    for model in job["models"]:
        try:
            answer = of_model(model, job["prompts"], job["new_tokens"])
        except Exception as error:  # noqa: BLE001  # whatever an engine raises is its answer
            answer = {"error": f"{type(error).__name__}: {error}"}
        Path(model["answers"]).write_text(json.dumps(answer), encoding="utf-8")


def of_model(model: dict[str, Any], prompts: list[list[int]], new_tokens: int) -> dict[str, Any]:
    cache = {"type_k": GGML_TYPE_F32, "type_v": GGML_TYPE_F32}  # float16 by default
    longest = max(map(len, prompts)) + new_tokens
    given = {"n_ctx": longest, "n_threads": 1, "n_threads_batch": 1, **cache}
    engine = Llama(model["folder"], logits_all=True, verbose=False, **given)
    scores, tokens = [], []
    for prompt in prompts:
        engine.reset()
        engine.eval(prompt)
        ids = list(prompt)
        for _ in range(new_tokens):
            ids.append(int(engine.scores[len(ids) - 1].argmax()))
            engine.eval(ids[-1:])
        logits = engine.scores[: len(ids) - 1].astype(np.float64)
        rows = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
        scores.append(rows[np.arange(len(rows)), ids[1:]].tolist())
        tokens.append(ids[len(prompt) :])
    engine.close()
    return {"scores": scores, "tokens": tokens}


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
