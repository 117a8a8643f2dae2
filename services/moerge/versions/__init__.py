"""Published versions: the files of a stock MoE checkpoint, each planned before it is written."""
