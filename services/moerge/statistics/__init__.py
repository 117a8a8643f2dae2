"""Ridge statistics: features from the decoder, their sums, the sums as integers, and what a sum must satisfy."""
