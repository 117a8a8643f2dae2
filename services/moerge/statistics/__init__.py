"""Ridge statistics: features from the decoder, their sums, the sums as integers, and the checks of sums."""
