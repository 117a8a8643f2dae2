"""Dense checkpoints: families, configs, tensors, and the models that they make."""
