"""What the decoder of a language model computes, read from its module: the source of every engine's graph."""
