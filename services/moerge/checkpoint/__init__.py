"""Checkpoint folders: read lazily, written tensor by tensor and atomically."""
