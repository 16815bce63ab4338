"""Daemons with and without an upstream, as processes."""
