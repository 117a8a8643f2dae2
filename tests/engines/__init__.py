"""Published versions in the engines of consumers, compared with transformers."""
