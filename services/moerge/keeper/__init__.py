"""A keeper of masks: its key and journal (`journal`), and its answers to requests (`answer`)."""
