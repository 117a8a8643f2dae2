"""Data that crosses the network: messages, the statistics file, problem types."""
