"""The single exit of the machine: questions to the owner, records of all sent items, the signing key."""
