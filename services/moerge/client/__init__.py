"""The coordinator's REST interface, from the other side."""
