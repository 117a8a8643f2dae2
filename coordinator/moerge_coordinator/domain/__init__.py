"""The coordinator's rules, on rows and messages; nothing here knows HTTP."""
