"""Replication over Redis, with two connections: one subscribes, one publishes."""
