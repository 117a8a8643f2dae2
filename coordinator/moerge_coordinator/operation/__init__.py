"""Commands for the coordinator's operator."""
