"""Replication: publishing the log to followers, following other servers, and members of a channel."""
