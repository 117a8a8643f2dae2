"""Mixtures without a stock class: BAM, BTS, and MergeME's of different architectures.

Importing this package registers them with transformers' Auto classes. Models are folders of `moerge tune`. They load
with this package, never with remote code, and nobody publishes them.
"""

from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from moerge_lab.mixtures.bam import Bam, BamConfig
from moerge_lab.mixtures.bts import Bts, BtsConfig
from moerge_lab.mixtures.heterogeneous import Heterogeneous, HeterogeneousConfig

CLASSES: tuple[tuple[type[PretrainedConfig], type[PreTrainedModel]], ...] = (
    (BamConfig, Bam),
    (BtsConfig, Bts),
    (HeterogeneousConfig, Heterogeneous),
)

for _config, _model in CLASSES:
    AutoConfig.register(_config.model_type, _config, exist_ok=True)
    AutoModelForCausalLM.register(_config, _model, exist_ok=True)
