"""The stages of a run, one module per kind of contribution."""
