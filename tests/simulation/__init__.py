"""A coordinator under random operations and faults, compared with a model that applies each operation once."""
