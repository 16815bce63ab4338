"""Upgrades: what an earlier release left on disk, and an earlier release at the other end of each way.

`26.11.1` is the last release before the handshake of replicas lost its challenge (commit ab6cef8f). Its
folder has the release itself, as a wheel, and what it left: a log, positions of a follower, an archive, and
the bytes that it sent. `freeze.py` made them; they never change.
"""
