"""The engine that reads, checks and describes every kind of config."""
