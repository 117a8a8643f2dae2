"""Workers whose processes are killed, and what they send all the same."""
