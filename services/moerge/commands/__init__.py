"""Commands that speak to a coordinator, one module a noun."""
