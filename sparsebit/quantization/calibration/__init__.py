"""A round of calibration, and the list that keeps its inputs."""
