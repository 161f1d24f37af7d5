"""Folders that hold language models: read, checked, and written."""
