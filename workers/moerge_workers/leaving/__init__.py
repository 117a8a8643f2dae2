"""The single exit of the machine: questions to the owner, records of everything sent, the key that signs."""
