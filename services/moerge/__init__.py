"""moerge: dense expert LLMs of different owners become one Mixture-of-Experts checkpoint (DUME, arXiv 2603.29765)."""

__version__ = "0.1.0"
