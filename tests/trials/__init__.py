"""What was tried past DUME."""
