"""A conversation with a version on this machine, each token with the expert that chose it."""
