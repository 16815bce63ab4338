"""Transports: TCP, Redis and HTTP."""
