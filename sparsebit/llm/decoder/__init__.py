"""What the decoder of a language model computes, read from its module: one description for every engine's graph."""
