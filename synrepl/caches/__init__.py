"""A worker's caches, which changes in other processes invalidate, and the rows that announce these changes.

Pure: no network, no clock, no reactor.
"""
