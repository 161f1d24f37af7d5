"""One file per tool: the lines that its user writes, and how the weights that came out are read."""
