"""The wake-ups of PostgreSQL on the real reactor."""
