"""What all rows share: one model, the same tokens to measure with, the same tokens to be judged by."""

from __future__ import annotations

SEED = 0
MODEL = "SmolLM2-135M"
SAMPLES, LENGTH = 16, 512  # calibration: sequences, and tokens of each
RESERVED = 32768  # tokens at the end of the text that are never measured with
HELD_OUT, WINDOW = 4096, 1024  # how many of these rows are judged by, and in windows of how many tokens
STEPS, SEQUENCES = 64, 1  # of methods that learn: mini-batches for each block, and sequences in each
NOTE = "the float weights of this model lie on a 4-bit affine grid with groups of 32"
