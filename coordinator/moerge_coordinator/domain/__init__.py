"""The coordinator's rules, on rows and messages, independent of HTTP."""
