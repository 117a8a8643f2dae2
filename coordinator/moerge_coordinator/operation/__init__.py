"""Commands for whoever runs a coordinator."""
