"""The client of the coordinator's REST interface."""
