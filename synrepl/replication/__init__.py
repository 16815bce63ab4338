"""Publishing the log to followers, and following."""
