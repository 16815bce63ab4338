"""Streams: their declarations, the shapes of their rows in each release, facts and positions.

Pure: no network, no clock, no reactor.
"""
