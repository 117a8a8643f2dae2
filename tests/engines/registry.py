"""The engines of `make test-engines`. To add one, write its module, and its script in `scripts`."""

from engines import llama_cpp, vllm

ENGINES = {each.ENGINE.name: each.ENGINE for each in (vllm, llama_cpp)}
