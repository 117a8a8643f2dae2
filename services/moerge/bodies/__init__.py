"""Bodies: all parameters outside the MLPs, merged from an ordered list of experts."""
