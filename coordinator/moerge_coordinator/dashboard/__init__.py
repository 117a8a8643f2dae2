"""The dashboard: pages of HTML over the coordinator's own REST calls, for browsers with and without JavaScript."""
