"""Dense families and mixtures without an equivalent stock MoE class, and the reason."""

_SANDWICH = "norms after attention and MLP as well as before them"
_CAPPED = f"{_SANDWICH}, and capped logits"
_MIXERS = "no stock MoE class has its layers in place of attention"
_NO_GATE = "its MLPs have no gate"
_NO_MLP = "it has no MLPs"
_MIXTURE = "it is a mixture of moerge tune, and a version must load with stock transformers (law 6)"
REFUSED = {
    "apertus": f"{_NO_GATE}, and another activation (xIELU)",
    "arcee": _NO_GATE,
    "bitnet": "norms inside attention and MLP",
    "cohere": "norms of queries and keys in some models, which Cohere2-MoE lacks",
    "diffllama": "its attention is a difference of two",
    "doge": "its residuals are scaled, and the experts of its MoE class add to the MLP",
    "exaone4": "its norms come after attention and MLP",
    "falcon_h1": f"state-space layers beside attention; {_MIXERS}",
    "falcon_mamba": _NO_MLP,
    "gemma2": _CAPPED,
    "gemma3n_text": "several residuals at once (AltUp), and low-rank ones (LAuReL)",
    "glm4": _SANDWICH,
    "gpt_neox": f"{_NO_GATE}, and biases",
    "hrm_text": "gates in attention, and norms without weights",
    "jais2": f"{_NO_GATE}, and layer norms with biases",
    "lfm3": f"{_SANDWICH}, and gates in attention",
    "mamba": _NO_MLP,
    "mamba2": _NO_MLP,
    "minicpm3": "multi-head latent attention",
    "mistral4": "transformers has no causal language model of it",
    "moerge_bam": _MIXTURE,
    "moerge_bts": _MIXTURE,
    "moerge_heterogeneous": _MIXTURE,
    "nanochat": f"{_NO_GATE}; capped logits, and norms without weights",
    "nemotron": _NO_GATE,
    "olmo3": "sliding windows; FlexOlmo, which has its norms of whole queries and keys, has none",
    "olmo_hybrid": f"linear attention; {_MIXERS}",
    "recurrent_gemma": f"recurrent layers, and biases of MLPs; {_MIXERS}",
    "stablelm": "layer norms with biases",
    "starcoder2": f"{_NO_GATE}, and biases",
    "vaultgemma": "capped logits and attention scores",
    "zamba2": f"state-space layers that share one attention; {_MIXERS}",
}
