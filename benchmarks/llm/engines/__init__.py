"""Our file beside each engine's own 4-bit file of the same model: size, speed, distance from float."""
