"""Grants: owners decide which readers may use their experts, and readers get the part of a version with these."""
