"""Calls of a captured graph: the model's own signature around flat tensors."""
