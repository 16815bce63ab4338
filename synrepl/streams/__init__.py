"""Streams: what they are called, what their rows look like in each release, and how they are told apart.

Pure: no network, no clock, no reactor.
"""
