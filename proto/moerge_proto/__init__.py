"""What crosses the network: messages, the statistics file, problem types."""
