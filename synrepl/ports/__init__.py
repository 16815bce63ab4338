"""Ports: interfaces between the parts, metrics, access rights, and owned coroutines."""
