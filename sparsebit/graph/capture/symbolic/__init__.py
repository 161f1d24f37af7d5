"""Trace a model without running it."""
