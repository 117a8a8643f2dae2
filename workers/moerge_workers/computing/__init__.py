"""Local computation: sums by Ray actors, fitted MLPs, scores of held-out documents."""
