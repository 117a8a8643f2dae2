"""What is seen of a run: on a terminal, in a log, in a file of the home, in Prometheus, at the coordinator."""
