"""Plain PyTorch networks from the published architectures; full size by default, small by argument."""
