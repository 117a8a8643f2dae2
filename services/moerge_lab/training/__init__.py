"""Training: batches, loop, checkpoints and the routing of MoE models while they are trained."""
