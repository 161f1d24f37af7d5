"""The weights of a block: where they are used, and statistics of their inputs."""
