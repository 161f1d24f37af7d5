"""Language models: our weight-only methods beside those of other tools, on one model and the same tokens."""
