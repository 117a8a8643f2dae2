"""Ends the collection of garbage until `support.frozen` is imported; it is a third of the time of imports."""

import gc

gc.disable()
