"""The dashboard: HTML pages based on the coordinator's REST calls, usable without JavaScript."""
