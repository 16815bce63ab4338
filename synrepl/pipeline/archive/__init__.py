"""Archive: the log as a Delta table."""
