"""Widths for every layer: what each tensor loses at each width, and the choice under a budget."""
