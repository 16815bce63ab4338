"""HTTP: a site and its clients, in memory."""
