"""Published versions in the formats of other engines."""
