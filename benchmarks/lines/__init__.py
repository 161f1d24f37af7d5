"""How many lines the library takes, for what."""
