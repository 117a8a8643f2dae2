"""The owner's privacy budget: contributions with noise, their cost, and the rule that nothing else leaves."""
