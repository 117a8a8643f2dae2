"""The engines of `make test-engines`. To add one, write its module, and its script in `scripts`."""

from engines import llama_cpp, vllm

ENGINES = {item.ENGINE.name: item.ENGINE for item in (vllm, llama_cpp)}
