"""Dense checkpoints: families, configs, tensors and models."""
