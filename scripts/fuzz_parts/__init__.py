"""The targets of `scripts/fuzz`, and the mutation of inputs."""
