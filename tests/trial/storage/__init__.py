"""The log on the real reactor, with threads and a real PostgreSQL."""
