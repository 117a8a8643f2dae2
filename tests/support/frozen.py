"""Frees what is garbage, and keeps all else that is imported by now out of later collections.

torch and transformers bring a million objects; to look through them again and again is half of a coordinator's start.
"""

import gc

gc.collect()
gc.freeze()
