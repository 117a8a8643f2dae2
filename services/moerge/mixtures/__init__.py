"""Mixtures without a stock class: BAM and BTS. Importing this package registers them with transformers' Auto classes.

Models are folders of `moerge tune`. They load with this package, never with remote code, and nobody publishes them.
"""

from transformers import AutoConfig, AutoModelForCausalLM

from moerge.mixtures.bam import Bam, BamConfig
from moerge.mixtures.base import Mixture, MixtureConfig
from moerge.mixtures.bts import Bts, BtsConfig

CLASSES: tuple[tuple[type[MixtureConfig], type[Mixture]], ...] = ((BamConfig, Bam), (BtsConfig, Bts))

for _config, _model in CLASSES:
    AutoConfig.register(_config.model_type, _config, exist_ok=True)
    AutoModelForCausalLM.register(_config, _model, exist_ok=True)
