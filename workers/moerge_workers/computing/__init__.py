"""What is computed at home: sums by Ray actors, and MLPs fitted to a trunk."""
