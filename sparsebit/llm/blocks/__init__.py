"""The repeated blocks of a model: where they are, how they are called, how one is solved."""
