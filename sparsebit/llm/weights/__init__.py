"""The weights of a block: where they are used, and what is known of their inputs."""
