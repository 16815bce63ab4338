"""Snapshots: the facts of an archive that newer facts have not replaced."""
