"""Methods of merging a trunk: one module a method. Importing them imports no torch."""
