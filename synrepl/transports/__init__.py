"""Transports: TCP, Redis, HTTP and RESP."""
