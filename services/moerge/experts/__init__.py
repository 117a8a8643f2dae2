"""What owners do to their experts."""
