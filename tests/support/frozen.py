"""Collects garbage, and excludes all imported objects from later collections.

torch and transformers have a million objects; repeated collections of them are half of a coordinator's start.
"""

import gc

gc.collect()
gc.freeze()
gc.enable()
