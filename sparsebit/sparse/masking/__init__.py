"""Pruned weights held at zero while training goes on."""
