"""What criteria need beside the weights, measured on data."""
