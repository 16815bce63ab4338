"""The log and wake-ups on the real reactor, with threads and a real PostgreSQL."""
