"""The stages of a run, each of which contributes one kind of thing."""
