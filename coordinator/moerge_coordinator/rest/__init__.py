"""The REST API: each route decodes a call, makes it, and encodes the answer."""
