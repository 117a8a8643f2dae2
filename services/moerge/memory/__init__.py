"""Memory: the needs of each piece of work, the machine's free memory, and their comparison before the work starts."""
