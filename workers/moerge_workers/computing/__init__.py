"""Local computation: sums by Ray actors, scores of held-out documents."""
