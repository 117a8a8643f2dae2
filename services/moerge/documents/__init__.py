"""An owner's documents, from files to shards of token ids."""
