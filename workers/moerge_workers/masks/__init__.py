"""The owner's keepers: masked contributions, the seeds of their masks, and their seals."""
