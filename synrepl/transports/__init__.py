"""Bytes and sockets, thin: TCP and HTTP."""
