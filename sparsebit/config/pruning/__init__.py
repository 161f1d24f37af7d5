"""The keys of a pruning config, and which settings can be used together."""
