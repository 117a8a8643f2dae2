"""`moerge route`: the weights of a model's experts along a text, drawn."""
