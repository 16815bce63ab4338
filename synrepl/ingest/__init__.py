"""Sources of facts: the Redis of a deployment, servers that are followed over TCP, and tables for catch-up.

All sources write to one log, which stores each fact once.
"""
