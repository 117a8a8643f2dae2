"""The one door: what leaves is asked about, sent and written down here."""
