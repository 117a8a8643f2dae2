"""Content-addressed, read-only files."""
