"""The coordinator's rules, on rows and messages, independent of HTTP.

Rules refuse a request with a `MoergeError`, mostly a `RefusedError`, which names the field.
"""
