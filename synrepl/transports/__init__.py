"""Bytes and sockets, thin: TCP, Redis and HTTP."""
