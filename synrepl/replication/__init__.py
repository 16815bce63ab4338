"""Replication: serving the log, following other servers, members of a channel, and what these share."""
