"""Views of a run: terminal, log, status file, Prometheus, progress for the coordinator."""
