"""Sources of facts: the Redis of a deployment, followed servers, and tables for catch-up.

All sources write to one log, which stores each fact once (`Ingester`).
"""
