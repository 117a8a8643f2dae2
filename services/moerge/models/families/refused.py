"""Dense families and mixtures without an equivalent stock MoE class, and the reason."""

_SANDWICH = "norms after attention and MLP as well as before them"
_MIXTURE = "it is a mixture of moerge tune, and a version must load with stock transformers (law 6)"
REFUSED = {
    "apertus": "its MLPs have no gate",
    "exaone4": "its norms come after attention and MLP",
    "gemma2": f"{_SANDWICH}, and capped logits",
    "gemma3_text": _SANDWICH,
    "gemma4_text": _SANDWICH,
    "glm4": _SANDWICH,
    "gpt_neox": "its MLPs have no gate, and biases",
    "minicpm3": "multi-head latent attention",
    "moerge_bam": _MIXTURE,
    "moerge_bts": _MIXTURE,
    "moerge_heterogeneous": _MIXTURE,
    "nemotron": "its MLPs have no gate",
    "stablelm": "layer norms with biases",
    "starcoder2": "its MLPs have no gate, and biases",
}
