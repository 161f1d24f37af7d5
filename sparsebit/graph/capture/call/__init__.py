"""How a captured graph is called: the model's own signature around flat tensors."""
