"""Serving the log: what followers, replicas and readers over HTTP are sent of it, and what followers say."""
