"""The laboratory: recipes of the papers, training, tables and the demo. It imports the library; nothing imports it."""
