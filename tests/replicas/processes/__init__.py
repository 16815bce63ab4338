"""Replicas as real processes."""
