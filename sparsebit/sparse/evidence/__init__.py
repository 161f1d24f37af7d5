"""Statistics that criteria need in addition to the weights, measured on data."""
