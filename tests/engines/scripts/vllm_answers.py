"""Answers of vLLM, run by its own Python: `vllm_answers.py JOB`. One process serves all models in turn."""

import gc
import json
import sys
from pathlib import Path
from typing import Any

import torch
from vllm import LLM, SamplingParams  # type: ignore[import-not-found]
from vllm.distributed import cleanup_dist_env_and_memory  # type: ignore[import-not-found]


def main(job: dict[str, Any]) -> None:
    for model in job["models"]:
        try:
            answer = of_model(model, job["prompts"], job["new_tokens"])
        except Exception as error:  # noqa: BLE001  # whatever an engine raises is its answer
            answer = {"error": f"{type(error).__name__}: {error}"}
        cleanup_dist_env_and_memory()
        gc.collect()
        Path(model["answers"]).write_text(json.dumps(answer), encoding="utf-8")


def of_model(model: dict[str, Any], prompts: list[list[int]], new_tokens: int) -> dict[str, Any]:
    engine = LLM(
        model["folder"],
        dtype=model["dtype"],
        enforce_eager=True,
        enable_prefix_caching=False,
        max_num_seqs=8,
        disable_log_stats=True,
        max_num_batched_tokens=512,
        **model["options"],
    )
    greedy = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True, logprobs=1, prompt_logprobs=1)
    result = engine.generate([{"prompt_token_ids": ids} for ids in prompts], greedy, use_tqdm=False)
    scores, tokens = [], []
    for ids, item in zip(prompts, result, strict=True):
        [made] = item.outputs
        read = [place[token].logprob for token, place in zip(ids[1:], item.prompt_logprobs[1:], strict=True)]
        new = [place[token].logprob for token, place in zip(made.token_ids, made.logprobs, strict=True)]
        scores.append(read + new)
        tokens.append(list(made.token_ids))
    return {"scores": scores, "tokens": tokens}


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
