"""The routes of replicas."""
