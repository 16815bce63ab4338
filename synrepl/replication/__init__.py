"""Replication: publishing the log to followers, following other servers, replicas and roles."""
