"""Things that matter, broken one at a time in a copy, and the tests that must fail then."""
