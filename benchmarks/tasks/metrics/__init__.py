"""The arithmetic of the metrics, free of models and files."""
