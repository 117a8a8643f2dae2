"""The owner's documents: split, cut into shards, and named under a key of the owner's."""
