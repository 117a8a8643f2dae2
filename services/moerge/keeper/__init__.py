"""A keeper of masks: its key and journal (`journal`), its service (`server`), and requests to one (`asking`)."""
