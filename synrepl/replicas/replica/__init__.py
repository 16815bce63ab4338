"""Replication from an upstream: join, follow, detect divergence."""
