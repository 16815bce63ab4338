"""Caches of a worker that changes in other processes invalidate, and the rows that announce such changes.

Pure: no network, no clock, no reactor.
"""
