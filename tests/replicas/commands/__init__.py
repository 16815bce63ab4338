"""The commands of replicas."""
