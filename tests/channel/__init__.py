"""The RESP port: a server for Redis clients."""
