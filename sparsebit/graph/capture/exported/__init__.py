"""Graphs made by ``torch.export``."""
