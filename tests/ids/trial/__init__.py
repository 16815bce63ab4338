"""The generators of ids on the real reactor, with threads and a real PostgreSQL."""
