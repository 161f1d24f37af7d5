"""Widths for every layer: the error of each tensor at each width, and the choice under a budget."""
