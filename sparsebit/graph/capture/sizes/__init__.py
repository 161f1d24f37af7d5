"""Sizes of tensors as numbers that remember where they came from."""
