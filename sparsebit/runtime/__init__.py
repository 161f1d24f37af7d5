"""Open exported files in the runtimes installed here, and time them."""
