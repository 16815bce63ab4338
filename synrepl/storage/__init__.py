"""Storage: the append-only log of facts and the databases that hold it."""
