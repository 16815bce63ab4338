"""Simulated worlds of replicas."""
