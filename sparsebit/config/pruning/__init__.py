"""What may stand in a pruning config, and what goes together."""
