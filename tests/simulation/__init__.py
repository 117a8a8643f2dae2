"""A coordinator under random operations and faults, compared with a model that applied each operation once."""
