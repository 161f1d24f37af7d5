"""Weights that stay packed, and the layers that hold them."""
